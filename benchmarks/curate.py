"""Curation as rows grow: rows per second, the seconds of each step, and peak memory.

    python -m benchmarks.curate 100000 1000000 3000000         nothing else should run: one process and one thread
    python -m benchmarks.curate 20000 --workers 2              the same with two worker processes of Dask
    python -m benchmarks.curate --keys 1000000 10000000        only what is kept of each row, which is all that grows

Rows are made from a seed: a question of 50 to 170 words (300 to 1,000 characters), a number as the answer and a worked solution. Of
a hundred one is an exact duplicate of an earlier row (in other case), two are near duplicates (three of their words are others), and one
has thirteen words of one of 500 benchmark questions. The model's tokenizer is trained before the clock starts. Seconds of steps are
those of the processor, so that they mean something on a busy machine. Of several sizes benchmarks/results/curate.json is
written, with the slopes between the smallest and the largest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
VOCABULARY, QUESTIONS, SHORTEST, LONGEST, BLOCK = 20_000, 500, 50, 170, 10_000


def words(draw: np.random.Generator) -> np.ndarray:
    """Words of 2 to 9 letters."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    return np.array(["".join(letters[draw.integers(0, 26, size)]) for size in draw.integers(2, 10, VOCABULARY)])


def questions(seed: int = 0) -> list[tuple[str, str]]:
    """(task, question) of the benchmark that rows must not hold."""
    draw = np.random.default_rng([seed, 1])
    known = words(np.random.default_rng(seed))
    return [("bench", " ".join(known[draw.integers(0, VOCABULARY, 60)])) for _ in range(QUESTIONS)]


def rows(count: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """Rows with planted duplicates and leaks; the first rows are the same for any count."""
    known, asked = words(np.random.default_rng(seed)), questions(seed)
    for first in range(0, count, BLOCK):
        draw = np.random.default_rng([seed, 2, first])
        before: list[list[str]] = []
        lengths, kinds = draw.integers(SHORTEST, LONGEST, BLOCK), draw.integers(0, 100, BLOCK)
        for number in range(first, min(count, first + BLOCK)):
            listed = known[draw.integers(0, VOCABULARY, lengths[number - first])].tolist()
            kind, answer = kinds[number - first], number
            if kind < 3 and before:
                earlier = int(draw.integers(0, len(before)))
                listed, answer = list(before[earlier]), first + earlier
                listed = [word.upper() for word in listed] if kind == 0 else [*listed[:-3], "other", "last", "words"]
            elif kind == 3:
                listed[7:20] = asked[number % QUESTIONS][1].split()[20:33]
            before.append(listed)
            text = " ".join(listed)
            yield {"question": text, "answer": str(answer), "solution": f"It is {answer}, since {text[:200]}."}


def write(path: Path, count: int) -> None:
    """The rows as JSON Lines."""
    with open(path, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(count))


class Clock:
    """Seconds of functions, without those of clocked functions that they call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = [0.0]

    def __call__(self, owner: Any, name: str, step: str) -> None:
        """Clock a function of a module or a class; of one that yields, its own part."""
        work = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            return self._time(step, lambda: work(*args, **kwargs))

        def timed_rows(*args: Any, **kwargs: Any) -> Iterator[Any]:
            listed = iter(work(*args, **kwargs))
            end = object()
            while (row := self._time(step, lambda: next(listed, end))) is not end:
                yield row

        setattr(owner, name, timed_rows if name in ("rows", "iter_problems") else timed)

    def _time(self, step: str, work: Callable[[], Any]) -> Any:
        self._inside.append(0.0)
        began = time.process_time()
        try:
            return work()
        finally:
            whole = time.process_time() - began
            self.seconds[step] = self.seconds.get(step, 0.0) + whole - self._inside.pop()
            self._inside[-1] += whole


def child(folder: Path, path: Path, longest: int | None, workers: int) -> None:
    """One stage in this process; prints its numbers."""
    from pipelines.contract.model_settings import Model
    from pipelines.curate import by_row, similar
    from pipelines.curate import run as stage
    from pipelines.curate.workers import Workers
    from pipelines.data import dataset
    from pipelines.recipe.server import Dask
    from pipelines.recipe.settings import Curate
    from pipelines.stage.report import Report

    clock = Clock()
    for owner, name, step in (
        (stage.sources, "rows", "reading and parsing"),
        (by_row.Reader, "record", "records: mapping, normalising, gold check, exact key"),
        (similar.Contamination, "hit", "decontamination"),
        (by_row.Reader, "compare", "MinHash signatures"),
        (dataset.Writer, "add", "writing, twice"),
        (stage, "iter_problems", "reading again"),
        (stage, "_repeats", "near duplicates: candidates and exact similarity"),
        (by_row.Bounds, "fault", "control tokens and lengths"),
        (stage, "_first_pass", "the rest of the first pass"),
        (stage, "_second_pass", "splits and the rest of the second pass"),
    ):
        clock(owner, name, step)
    source = {"kind": "file", "path": str(path), "verifier": "number"}
    curate = Curate.model_validate({"sources": [source], "max_prompt_tokens": longest})
    dask = Workers(Dask(workers=workers), {}, folder) if workers else None
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as work, dask or contextlib.nullcontext() as pool:
        ready = time.perf_counter()
        report = Report(Path(work))
        (Path(work) / "out").mkdir()
        stage.run(
            curate, Model(path=str(folder / "model")), out=Path(work) / "out", report=report, seed=0,
            benchmark_texts=questions, workers=pool,
        )  # fmt: skip
        card = json.loads((Path(work) / "out/report/card.json").read_text())
        seconds = time.perf_counter() - ready
    told = {"seconds": seconds, "start_s": ready - began, "steps": clock.seconds}
    print(json.dumps(told | {"rows": card["rows"], "splits": card["splits"]}))


def keys(count: int) -> None:
    """What the stage keeps of so many rows, without the rows: random keys and signatures, of which one in fifty is its predecessor's."""
    from pipelines.curate import run as stage
    from pipelines.curate.by_row import Record
    from pipelines.curate.similar import candidate_pairs
    from pipelines.data.records import Problem
    from pipelines.recipe.settings import NearDuplicates

    began, near, draw = time.process_time(), NearDuplicates(), np.random.default_rng(0)
    kept = stage._Kept(near)
    nothing = Problem(uid="", prompt=[], answer="", verifier="", source="", licence="")
    for first in range(0, count, BLOCK):
        signatures = draw.integers(0, 2**32, (BLOCK, near.permutations), dtype=np.uint32)
        signatures[1::50] = signatures[::50]
        for number, key, signature in zip(
            range(first, count), draw.integers(0, 2**63, BLOCK).tolist(), signatures, strict=False
        ):
            kept.first_with_prompt(key)
            kept.claim_uid(f"{number:032x}")
            kept.add(Record(nothing, set(), set(), key, signature=signature.tobytes()), 0)
    filled = time.process_time()
    pairs = candidate_pairs(kept.keys())
    print(
        json.dumps(
            {"keys": count, "fill_s": filled - began, "pairs": len(pairs), "pairs_s": time.process_time() - filled}
        )
    )


def tokenizer(folder: Path) -> None:
    """A tokenizer of 4,000 byte pairs, saved as a model's."""
    from pipelines.engine import models

    trained = models.train_tokenizer("bpe", 4000, (row["question"] for row in rows(5000)))
    models.save_tokenizer(trained, folder / "model")


def measure(folder: Path, count: int, *options: str) -> dict[str, Any]:
    """A stage of so many rows in a process of its own."""
    path = folder / f"rows-{count}.jsonl"
    write(path, count)
    body = run("--child", str(path), "--folder", str(folder), *options)
    body |= {"rows_per_s": count / body["seconds"], "file_mb": path.stat().st_size / 1e6}
    path.unlink()
    return body


def run(*options: str) -> dict[str, Any]:
    """What this module prints in a process of its own, with its peak memory and processor time."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "benchmarks.curate", *options]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"{' '.join(options)} failed"
    peak = {"peak_mb": usage.ru_maxrss / 1024, "processor_s": usage.ru_utime + usage.ru_stime}
    return json.loads(printed.splitlines()[-1]) | peak


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, default=Path(".whetstone/bench/curate"))
    parser.add_argument("--workers", type=int, default=0, help="processes of Dask; default: none")
    parser.add_argument("--max-prompt-tokens", type=int, help="count the tokens of every prompt too")
    parser.add_argument("--keys", type=int, nargs="+", metavar="ROWS", help="only what is kept of so many rows")
    parser.add_argument("--child-keys", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = args.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if args.child:
        child(folder, args.child, args.max_prompt_tokens, args.workers)
        return
    if args.child_keys:
        keys(args.child_keys)
        return
    for count in args.keys or ():
        print(run("--child-keys", str(count)), flush=True)
    if args.keys:
        return
    tokenizer(folder)
    options = ["--workers", str(args.workers)]
    options += ["--max-prompt-tokens", str(args.max_prompt_tokens)] if args.max_prompt_tokens else []
    runs = []
    for count in args.counts:
        runs.append(measure(folder, count, *options))
        print(json.dumps(runs[-1], indent=1), flush=True)
    body: dict[str, Any] = {"measured": time.strftime("%Y-%m-%d"), "runs": runs}
    if len(runs) > 1:
        few, many = runs[0], runs[-1]
        millions = (many["rows"]["read"] - few["rows"]["read"]) / 1e6
        body["per_million"] = {
            name: (many[name] - few[name]) / millions for name in ("seconds", "processor_s", "peak_mb")
        }
        print(body["per_million"])
        (RESULTS / "curate.json").write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
