"""`whetstone verify FILE`: score the rows of a file offline, one verdict a line, in memory that does not grow with the file."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

from flows.cli import output
from pipelines import verifiers
from pipelines.base.errors import UserError
from pipelines.sandbox import pool as sandboxes
from pipelines.verifiers import Verdict, _sandboxed
from tasks import machine
from tasks.verify_rows import BAD_ROW, Row, as_output, check_verifier, row_of, verdicts

CHUNK_ROWS = 1024
CHUNK_BYTES = 32 << 20
"""A chunk is scored when it has this many rows or bytes."""
LINE_BYTES = 64 << 20
"""A longer line is a bad row; it is skipped without being read into memory."""
SHOWN = 10
"""Bad rows that are explained on stderr; all of them are in the output."""
PROGRESS_S = 5.0
JOBS_A_CORE, LEAST_MOST_JOBS = 4, 16
"""`--jobs` may be so many times the processors, as programs may wait, and so many on any machine."""


@dataclass
class Summary:
    """What came of a file."""

    rows: int = 0
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    scores: float = 0.0
    scored: int = 0
    sandbox: list[str] = field(default_factory=list)
    """Levels that confined programs."""

    def as_json(self) -> dict[str, Any]:
        """The summary for machines."""
        return {
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "rows_per_second": round(self.rows / self.seconds, 1) if self.seconds else None,
            "mean_score": self.scores / self.scored if self.scored else None,
            "statuses": dict(sorted(self.statuses.items())),
            "sandbox": self.sandbox,
        }

    def __str__(self) -> str:
        counts = ", ".join(f"{status} {count}" for status, count in self.statuses.most_common())
        mean = f", mean score {self.scores / self.scored:.4f}" if self.scored else ""
        rate = f" ({self.rows / self.seconds:.0f} rows/s)" if self.seconds else ""
        wall = f", sandbox {' and '.join(self.sandbox)}" if self.sandbox else ""
        return f"{self.rows} rows in {self.seconds:.1f} s{rate}: {counts or 'nothing'}{mean}{wall}"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("file", metavar="FILE", help="JSONL, also .gz; - is standard input")
    parser.add_argument("--verifier", metavar="NAME", help="for rows that name none; also FILE.py[:FUNCTION]")
    parser.add_argument("--jobs", type=int, metavar="N", help="worker processes; default: one per processor, at most 8")
    parser.add_argument("--sandbox", choices=["auto", "limits_only"], default="auto", help="how programs are confined")
    parser.add_argument("--out", metavar="FILE", help="verdicts as JSONL; default: standard output")
    parser.add_argument(
        "--json", action="store_true", help="for machines: the summary, or the error, as JSON (with --out)"
    )


def command(arguments: argparse.Namespace) -> int:
    """Score the file: exit code 2 where a line is no row.

    Raises:
        UserError: `--json` without `--out`, or as `score_file` does.
    """
    if arguments.json and arguments.out is None:
        raise UserError("--json", "the verdicts fill standard output; name a file for them with --out.")
    sandboxes.configure(limits_only=arguments.sandbox == "limits_only")
    summary = score_file(arguments.file, arguments.out, arguments.verifier, arguments.jobs)
    print(summary, file=sys.stderr)
    if arguments.json:
        print(json.dumps(summary.as_json(), indent=1))
    return output.CHANGE if summary.statuses[BAD_ROW] else output.DONE


def score_file(source: str, out: str | None, default: str | None, jobs: int | None) -> Summary:
    """Score every line of `source` and write a verdict per line, in order.

    Args:
        source: a JSONL file, also .gz; `-` is standard input.
        out: where the verdicts go; None is standard output.
        default: the verifier of rows that name none.
        jobs: worker processes; None: one per processor, at most 8.

    Raises:
        UserError: the file cannot be read, the output cannot be written, `default` is no verifier, or `jobs` are too many.
    """
    check_verifier(default, "--verifier")
    if jobs is not None:
        _check_jobs(jobs)
        verifiers.use_workers(jobs)
    if out is not None and source != "-" and Path(out).resolve() == Path(source).resolve():
        raise UserError(f"--out {out}", "the output would replace the input; name another file.")
    _sandboxed.be_patient()
    summary, began = Summary(), time.monotonic()
    with _opened(source) as rows_in, _output(out) as verdicts_out:
        reported = began
        for chunk in chunks(rows_in, source, default):
            for row, verdict in zip(chunk, verdicts(chunk), strict=True):
                print(json.dumps(as_output(row, verdict)), file=verdicts_out)
                _count(summary, row, verdict)
            summary.seconds = time.monotonic() - began
            if time.monotonic() - reported > PROGRESS_S:
                reported = time.monotonic()
                print(summary, file=sys.stderr, flush=True)
        verdicts_out.flush()
    summary.seconds, summary.sandbox = time.monotonic() - began, list(sandboxes.used)
    return summary


def _check_jobs(jobs: int) -> None:
    cores = machine.cores()
    most = max(LEAST_MOST_JOBS, JOBS_A_CORE * cores)
    if jobs < 1:
        raise UserError(f"--jobs {jobs}", "at least one worker is needed.")
    if jobs > most:
        raise UserError(
            f"--jobs {jobs}",
            f"each worker is a process with memory of its own, and more than this machine's processors ({cores}) make nothing faster",
            f"Use at most {most}.",
        )


def chunks(stream: BinaryIO, name: str, default: str | None) -> Iterator[list[Row]]:
    """The rows of a file, by the chunk.

    Raises:
        UserError: the file is damaged.
    """
    chunk: list[Row] = []
    size = 0
    for number, line in _lines(stream, name):
        if line is not None and not line.strip():
            continue
        chunk.append(read_row(line, number, default))
        size += len(line or b"")
        if len(chunk) >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines; None for one that is too long."""
    number = 0
    try:
        while line := stream.readline(LINE_BYTES):
            number += 1
            if len(line) == LINE_BYTES and not line.endswith(b"\n"):
                while (rest := stream.readline(1 << 20)) and not rest.endswith(b"\n"):
                    pass
                yield number, None
            else:
                yield number, line
    except (OSError, EOFError) as error:  # a .gz that is cut off, a disk that fails
        raise UserError(name, f"cannot be read after line {number} ({error}).") from None


def read_row(line: bytes | None, number: int, default: str | None) -> Row:
    """The row in a line of JSON; one that is none says why in `bad`."""
    if line is None:
        return Row(number, bad=f"the line is longer than {LINE_BYTES >> 20} MiB")
    try:
        value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        return Row(number, bad=f"not UTF-8: {error.reason} at byte {error.start + 1}")
    except json.JSONDecodeError as error:
        return Row(number, bad=f"not JSON: {error.msg} at character {error.pos + 1}")
    except RecursionError:
        return Row(number, bad="not JSON: nested too deeply")
    except ValueError as error:
        return Row(number, bad=f"not JSON: {str(error)[:120]}")
    return row_of(value, number, default)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _count(summary: Summary, row: Row, verdict: Verdict | None) -> None:
    summary.rows += 1
    status = BAD_ROW if verdict is None else verdict.status
    summary.statuses[status] += 1
    if verdict is not None and verdict.score is not None:
        summary.scored += 1
        summary.scores += verdict.score
    if verdict is None and summary.statuses[BAD_ROW] <= SHOWN:
        print(f"line {row.line}: {row.bad}", file=sys.stderr)


@contextlib.contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    if source == "-":
        yield sys.stdin.buffer
        return
    try:
        with open(source, "rb") as raw:
            if raw.peek(2)[:2] == b"\x1f\x8b":
                with gzip.open(raw) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield raw
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise UserError(source, f"cannot be opened ({reason})", "Name a JSONL file, or - for standard input.") from None


@contextlib.contextmanager
def _output(out: str | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    try:
        handle = open(out, "w", encoding="ascii")  # noqa: SIM115  (closed below; json.dumps escapes everything else)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"--out {out}", f"cannot be written ({reason})", "Name a file in a folder that exists."
        ) from None
    with handle:
        yield handle
