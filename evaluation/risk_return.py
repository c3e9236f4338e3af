"""What it yields and risks to evaluate only the checkpoints that a cheap score picks: SharpeRatio@k (SCOPE-RL, arXiv:2311.18207).

The checkpoints that a reward of training, a held-out loss or another benchmark ranks first have the scores that a whole benchmark gave
them. What the best of the k has over the checkpoint that they started from is the return of picking k, their standard deviation its risk.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.contract.metrics import METRICS, metric

LARGEST = 10
"""Most checkpoints that are picked."""
FEWEST = 3
"""Of two there is nothing to pick."""
TAIL = 0.25
"""Share of a curve's points, at its end, whose mean is a run's cheap score."""


@dataclass(frozen=True)
class TopK:
    """The k checkpoints that a cheap score ranks first, by their true scores."""

    k: int
    best: float
    worst: float
    mean: float
    std: float
    """Of the k, with k - 1 in the denominator."""
    sharpe: float | None
    """max(best - baseline, 0) / std; None where the k do not differ."""


def top_k(estimates: Sequence[float], values: Sequence[float], baseline: float) -> list[TopK]:
    """Every k from 2 up to all of them, `LARGEST` at most; of checkpoints with equal estimates the one given first is picked first.

    Args:
        estimates: a cheap score of each checkpoint, higher is better.
        values: its true score.
        baseline: the true score of what is there without any of them.

    >>> picked = top_k([4, 3, 2, 1], [0.50, 0.58, 0.46, 0.54], 0.45)[1]
    >>> picked.k, picked.best, picked.worst, round(picked.std, 6), round(picked.sharpe, 6)
    (3, 0.58, 0.46, 0.061101, 2.127624)
    """
    ranked = [value for _, value in sorted(zip(estimates, values, strict=True), key=lambda pair: -pair[0])]
    rows = []
    for k in range(2, min(len(ranked), LARGEST) + 1):
        chosen = ranked[:k]
        best, spread = max(chosen), statistics.stdev(chosen)
        ratio = max(best - baseline, 0.0) / spread if spread > 0 else None
        rows.append(TopK(k, best, min(chosen), statistics.fmean(chosen), spread, ratio))
    return rows


def tail_mean(values: Sequence[float]) -> float | None:
    """Mean of a curve's last quarter, of one value at least; None where there is none, or one of them is not finite.

    >>> tail_mean([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.75]), tail_mean([]), tail_mean([0.0, math.inf])
    (0.625, None, None)
    """
    tail = values[-max(1, round(TAIL * len(values))) :]
    return statistics.fmean(tail) if tail and all(map(math.isfinite, tail)) else None


def cheap_score(name: str, curve: Sequence[tuple[int, float]]) -> float | None:
    """What a curve says of the checkpoint at its end, higher is better; None where its metric says nothing of that.

    Args:
        name: `stage: metric`.
        curve: (step, value).

    >>> cheap_score("sft-2: loss/heldout", [(1, 2.0), (2, 0.5)]), cheap_score("rlvr: policy/entropy", [(1, 2.0)])
    (-0.5, None)
    """
    stage, _, measured = name.partition(": ")
    section = stage.partition("-")[0]
    line = metric(section, measured) if section in METRICS else None
    value = tail_mean([value for _, value in curve])
    if line is None or line.better is None or value is None:
        return None
    return value if line.better == "higher" else -value
