"""Over-optimisation: the reward that a policy was paid and its hidden truth, over its distance from the start.

    python -m benchmarks.overoptimisation plain=RUNS/rlvr-KEY/report/spool.jsonl par=...

Reads what rlvr stages reported: `reward/mean` is the proxy (before shaping), `reward/correct` the gold, and the distance d is the
square root of the KL of an answer, `policy/kl_to_reference` (nats a token; `divergence: {kind: k3, weight: 0}` measures it) times the
mean length. The law R(d) = d (a - b log d) of 2210.10760 is fitted to the gain of the gold by least squares.
"""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from evaluation import overoptimisation
from flows.cli.overoptimisation import GOLD, KL, LENGTH, PROXY
from pipelines.stage.report import lines_of

SHOWN = {"proxy": PROXY, "gold": GOLD, "length": LENGTH}


def windows(count: int) -> list[list[int]]:
    """Indices of the steps in windows that double: what matters happens early.

    >>> windows(9)
    [[0], [1], [2, 3], [4, 5, 6, 7], [8]]
    """
    edges = [0, *(2**n for n in range(count.bit_length() + 1))]
    return [list(range(low, min(high, count))) for low, high in pairwise(edges) if low < count]


def curve(path: Path) -> list[dict[str, float]]:
    """Means over windows of the steps: step (the window's last), distance, proxy, gold, length."""
    steps = [line for line in lines_of(path) if line.get("kind") == "metrics" and GOLD in line["values"]]
    rows = []
    for part in windows(len(steps)):
        values: list[dict[str, Any]] = [steps[i]["values"] for i in part]
        rows.append(
            {
                "step": float(steps[part[-1]]["step"]),
                "distance": math.sqrt(max(0.0, float(np.mean([v[KL] * v[LENGTH] for v in values])))),
                **{name: float(np.mean([v[key] for v in values])) for name, key in SHOWN.items()},
            }
        )
    return rows


def law(distance: np.ndarray, gain: np.ndarray) -> tuple[float, float]:
    """a and b of gain = d (a - b log d), by least squares.

    >>> d = np.array([0.5, 1.0, 2.0, 3.0])
    >>> [round(float(v), 6) for v in law(d, d * (0.3 - 0.2 * np.log(d)))]
    [0.3, 0.2]
    """
    (a, minus_b), *_ = np.linalg.lstsq(overoptimisation.law("rl", distance), gain, rcond=None)
    return float(a), -float(minus_b)


def main(arguments: list[str]) -> None:
    """Print a table for each curve, and its law."""
    print("| run | step | sqrt(KL) | proxy | gold | length |\n|---|---|---|---|---|---|")
    fitted = []
    for argument in arguments:
        name, _, path = argument.partition("=")
        rows = curve(Path(path))
        for row in rows:
            print(
                f"| {name} | {row['step']:.0f} | {row['distance']:.2f} | {row['proxy']:.2f} | {row['gold']:.3f} | "
                f"{row['length']:.2f} |"
            )
        start = rows[0]["gold"]
        moved = [row for row in rows if row["distance"] > 0]
        a, b = law(np.array([r["distance"] for r in moved]), np.array([r["gold"] - start for r in moved]))
        peak = max(rows, key=lambda row: row["gold"])
        fitted.append(
            f"{name}: a {a:.3f}, b {b:.3f}; highest gold {peak['gold']:.3f} at sqrt(KL) {peak['distance']:.2f}, last "
            f"{rows[-1]['gold']:.3f} at {rows[-1]['distance']:.2f}"
        )
    print("\n" + "\n".join(fitted))


if __name__ == "__main__":
    main(sys.argv[1:])
