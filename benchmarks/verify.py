"""Rows a second of verifiers, in this process and through the pool: `python -m benchmarks.verify`."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from pipelines.sandbox import pool as sandboxes
from pipelines.verifiers import pool, verify_here, verify_many


def rate(count: int, work: Callable[[], object]) -> float:
    """Rows a second of `work`, which handles `count` rows."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def main() -> None:
    """Print one line per verifier."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--bombs", type=int, default=0, help="instead: so many bombs among --rows programs, and their statuses"
    )
    args = parser.parse_args()
    if args.bombs:
        bombs(args.rows, args.bombs, args.workers)
        return
    workers = pool.Pool(workers=args.workers)
    print(f"{'verifier':10} {'direct/s':>10} {'pool/s':>10}   {args.rows} rows, {args.workers} worker(s)")
    rows: list[tuple[str, str, str, dict[str, Any]]]
    rows = [("math", f"so the answer is \\boxed{{{i}+x}}", f"x+{i}", {}) for i in range(args.rows)]
    requests = [pool.Request("verify", *row) for row in rows]
    workers.run(requests[:32])
    direct = rate(len(rows), lambda: [verify_here(*row) for row in rows])
    print(f"{'math':10} {direct:10.0f} {rate(len(rows), lambda: workers.run(requests)):10.0f}")
    workers.close()
    sandboxed(args.rows // 25, args.workers)


def sandboxed(count: int, workers: int) -> None:
    """Print the rate of programs with four hidden calls each."""
    sandboxes.configure(workers=workers)
    cases = [[{"args": [i], "expected": i * i + n} for i in range(4)] for n in range(count)]
    rows = [
        ("python", f"def f(x): return x * x + {n}", "", {"entry_point": "f", "cases": c}) for n, c in enumerate(cases)
    ]
    verify_many(rows[:8])
    rates = rate(count, lambda: verify_many(rows))
    print(f"{'python':10} {'-':>10} {rates:10.0f}   {count} rows of four calls, {sandboxes.used[-1]}")


BOMBS = (
    "while True: pass",
    "import os\nwhile True: os.fork()",
    "x = [0]\nwhile True: x = x + x",
    "def f(x): return f(x + 1)",
    "print('x' * 10_000_000)\nwhile True: print('x' * 1_000_000)",
    "import time\ntime.sleep(1000)",
    "def f(x): return 10 ** 10 ** 10",
    "import threading\nwhile True: threading.Thread(target=lambda: None).start()",
    "def f(x): return [[]] * 10 ** 9",
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nwhile True: pass",
)


def bombs(rows: int, count: int, workers: int) -> None:
    """Print how rows end of which `count` are bombs, each a text of its own; exit with 1 where a status is not what it must be."""
    sandboxes.configure(workers=workers)
    batch: list[tuple[str, str, str, dict[str, Any]]] = []
    for n in range(rows):
        cases = [{"args": [i], "expected": i * i + n} for i in range(2)]
        armed = n % (rows // count) == 0 and n // (rows // count) < count
        text = f"{BOMBS[n // (rows // count) % len(BOMBS)]}\nbomb = {n}" if armed else f"def f(x): return x * x + {n}"
        batch.append(("python", text, "", {"entry_point": "f", "timeout_s": 1, "cases": cases}))
    began = time.perf_counter()
    verdicts = verify_many(batch)
    seconds = time.perf_counter() - began
    ended: dict[str, Counter[str]] = {"bomb": Counter(), "program": Counter()}
    for row, verdict in zip(batch, verdicts, strict=True):
        ended["bomb" if "bomb" in row[1] else "program"][verdict.status] += 1
    print(f"{rows} rows, {count} bombs, {workers} worker(s): {seconds:.0f} s, {sandboxes.used[-1]}")
    for kind, statuses in ended.items():
        print(f"{kind:8} {dict(statuses)}")
    if ended["program"] != {"correct": rows - count} or ended["bomb"].keys() - {"timed_out", "incorrect", "unparsable"}:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
