"""How metrics leave a stage: lines in a spool file that the pipeline forwards.

A stage never talks to a tracking server. It appends metrics with fixed timestamps to `spool.jsonl`
and writes its progress to `progress.json`. The process that started the stage forwards both. A stage
with checkpoints passes `cursor()` into its commit; after a restart `rewind(cursor)` drops what was
written past the commit, so the metric history has no gap and no repeat.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.base.files import named, write_atomic

SPOOL, PROGRESS, VISIBLE = "spool.jsonl", "progress.json", "spool.visible"
RANK = "rank"
"""What the folder of another process than the first one is called, before its number."""
HANDED_ON = "handed_on"
"""Code of the event which says, with the step, that other weights than the last ones are handed on."""
log = logging.getLogger("whetstone")


class Report:
    """Writes one stage's metrics, events and progress under a work folder.

    Args:
        folder: the stage's work folder.
        committed: True where the stage commits checkpoints: lines become visible to the forwarder only
            with `publish()`, after the commit that covers them. Otherwise every line is visible at once.
    """

    def __init__(self, folder: Path, *, committed: bool = False) -> None:
        self.folder = folder
        self.committed = committed
        folder.mkdir(parents=True, exist_ok=True)
        cut_half_line(folder / SPOOL)
        self._file = open(folder / SPOOL, "ab", buffering=0)  # noqa: SIM115
        self._progress_at = 0.0
        self._started = time.monotonic()
        self._first_done = 0.0
        self._unit = ""

    @classmethod
    def of_rank(cls, folder: Path, *, committed: bool = False) -> Report:
        """The report of this process among those of a stage: the first one's is the stage's, and each other has a folder below it."""
        rank = os.environ.get("RANK", "0")
        return cls(folder if rank == "0" else folder / f"{RANK}{rank}", committed=committed)

    def take_in(self) -> None:
        """Append the metrics that the stage's other processes have written, of steps that are not here yet."""
        known = {line["step"] for line in history(self.folder / SPOOL)}
        for path in sorted(self.folder.glob(f"{RANK}*/{SPOOL}")):
            for line in history(path):
                if line["step"] not in known:
                    self._append(line)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of one step; NaN is written to the log and not forwarded."""
        now = int(time.time() * 1000)
        clean = {k: float(v) for k, v in values.items() if v is not None and not math.isnan(float(v))}
        self._append({"kind": "metrics", "step": step, "time": now, "values": clean})
        shown = "  ".join(f"{k} {v:.4g}" for k, v in values.items())
        log.info("step %d  %s", step, shown)

    def event(self, text: str, **about: Any) -> None:
        """Record an event: a warning, a resume, a skipped step.

        Args:
            text: for people.
            about: what else is known of it; `code` names the kinds of events that programs look for (`HANDED_ON`).
        """
        self._append({"kind": "event", "time": int(time.time() * 1000), "text": text, **about})
        log.info("%s %s", text, about or "")

    def progress(self, done: float, total: float, what: str = "", *, unit: str = "step", force: bool = False) -> None:
        """Record the progress of the stage; cheap to call, writes at most four times a second."""
        now = time.monotonic()
        if unit != self._unit:  # from now on other things are counted
            self._started = now if self._unit else self._started
            self._first_done, self._unit = done, unit
        if not force and now - self._progress_at < 0.25 and done < total:
            return
        self._progress_at = now
        elapsed = now - self._started
        rate = (done - self._first_done) / elapsed if elapsed > 0 else 0.0
        body = {"done": done, "total": total, "what": what, "unit": unit, "rate": rate, "time": time.time()}
        write_atomic(self.folder / PROGRESS, json.dumps(body), durable=False)

    def cursor(self) -> int:
        """Bytes of the spool so far; goes into a checkpoint."""
        return os.fstat(self._file.fileno()).st_size

    def rewind(self, cursor: int) -> None:
        """Drop the lines written after a checkpoint that recorded `cursor`.

        A spool that is shorter than that has lost lines; it stays as it is (truncating would fill it with zero bytes).
        """
        self._file.truncate(min(cursor, self.cursor()))
        self.publish()

    def publish(self, cursor: int | None = None) -> None:
        """Let the forwarder see everything up to a cursor; default: up to here."""
        write_atomic(self.folder / VISIBLE, str(self.cursor() if cursor is None else cursor), durable=False)

    def close(self) -> None:
        """Publish what is left and close the spool."""
        self.publish()
        self._file.close()

    def _append(self, line: dict[str, Any]) -> None:
        raw, before = (json.dumps(line) + "\n").encode(), self.cursor()
        try:
            while raw:
                raw = raw[self._file.write(raw) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(before)
            raise named(error, self.folder / SPOOL) from None
        if not self.committed:
            self.publish()


def cut_half_line(path: Path) -> int:
    """Cut a spool back to its last newline (a full disk and a power cut leave half lines); returns the bytes dropped."""
    with contextlib.suppress(FileNotFoundError), open(path, "r+b") as handle:
        end = size = handle.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65_536)
            handle.seek(start)
            newline = handle.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end != size:
            handle.truncate(end)
            log.warning("%s ended in half a line; %d bytes were cut off", path, size - end)
        return size - end
    return 0


def parse_line(raw: bytes) -> dict[str, Any]:
    """A line of a spool; `{"kind": "broken"}` for one that no stage can have written."""
    broken = {"kind": "broken"}
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return broken
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return broken
    if line["kind"] != "metrics":
        return line
    values = line.get("values")
    counts = all(_is_number(line.get(name)) and isinstance(line[name], int) for name in ("step", "time"))
    if not counts or not isinstance(values, dict) or not all(_is_number(v) for v in values.values()):
        return broken
    return line


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return False
    return isinstance(value, float) or abs(value) < 2**62


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Every readable line of a spool."""
    if path.is_file():
        with open(path, "rb") as handle:
            yield from (line for line in map(parse_line, handle) if line["kind"] != "broken")


def history(path: Path) -> list[dict[str, Any]]:
    """The metrics lines of a spool, without those of steps that a rollback has undone."""
    kept: list[dict[str, Any]] = []
    for line in lines_of(path):
        if line["kind"] == "metrics":
            kept.append(line)
        elif line["kind"] == "event" and "rollbacks" in line and isinstance(line.get("to"), int):
            kept = [earlier for earlier in kept if earlier["step"] <= line["to"]]
    return kept


def visible_lines(folder: Path, offset: int, name: str = SPOOL) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines of a spool that may be forwarded, from a byte offset: (offset after the line, line).

    A line that cannot be read comes as `{"kind": "broken"}`, so that a caller counts it once and goes on after it.
    An offset past the end (the spool was started again) starts over; sending a metric twice changes nothing in MLflow.
    """
    path = folder / name
    if not path.is_file():
        return
    size = path.stat().st_size
    limit = min(size, visible_bytes(folder)) if name == SPOOL else size
    with open(path, "rb") as handle:
        offset = offset if 0 <= offset <= size else 0
        if offset:
            handle.seek(offset - 1)
            if handle.read(1) != b"\n":
                offset += len(handle.readline())
        handle.seek(offset)
        while offset < limit:
            raw = handle.readline()
            if not raw.endswith(b"\n") or offset + len(raw) > limit:
                return
            offset += len(raw)
            yield offset, parse_line(raw)


def visible_bytes(folder: Path) -> int:
    """Up to which byte the spool may be forwarded."""
    try:
        return max(0, int((folder / VISIBLE).read_text()))
    except (OSError, ValueError):  # written again with the next commit, and at the latest when the stage ends
        return 0
