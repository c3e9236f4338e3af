"""Rows a second of verifiers, in this process and through the pool: `python -m benchmarks.verify`."""

from __future__ import annotations

import argparse
import time
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
    args = parser.parse_args()
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


if __name__ == "__main__":
    main()
