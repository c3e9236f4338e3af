"""Two models on the same problems: the paired test, what it could have noticed, and problems that were lost.

A problem is the unit: its answers are correlated, so they are averaged first. Differences are `new - old`, in [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from evaluation.statistics import paired_difference, pass_at_k
from pipelines.base import intervals
from pipelines.base.intervals import Floats

SCORE_TEST = "paired score test"


@dataclass(frozen=True)
class PairedTest:
    """A paired comparison."""

    test: str
    """How `p` and the interval were found."""
    value: float
    """Mean difference, new - old."""
    low: float
    high: float
    p: float
    """Two-sided."""
    n: int
    """Problems."""
    detectable: float
    """Smallest true difference that this many problems would have shown with 80 % power; more than 1 where no difference would."""
    better: int
    """Problems on which the new model scored higher."""
    worse: int

    def body(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def passes(answers: Sequence[Sequence[float]], ks: Sequence[int]) -> Floats:
    """Unbiased pass@k of every problem: float64 [problems, len(ks)].

    Args:
        answers: per problem, the score of each answer (correct from 1 on); at least max(ks) each.

    Raises:
        ValueError: a problem has fewer answers than the largest k.

    >>> passes([[1, 0, 0, 0], [1, 1, 1, 0]], [1, 2]).tolist()
    [[0.25, 0.5], [0.75, 1.0]]
    """
    counts = [(len(a), sum(v >= 1 for v in a)) for a in answers]
    rows = {pair: [pass_at_k(*pair, k) for k in ks] for pair in set(counts)}
    return np.array([rows[pair] for pair in counts], dtype=np.float64).reshape(len(counts), len(ks))


def compare(old: Floats, new: Floats, *, confidence: float = 0.95, tests: int = 1) -> PairedTest:
    """Compare two models problem by problem, by the score test of `pipelines.base.intervals`.

    Args:
        old: float64 [problems], score of each problem in [0, 1].
        new: the same problems, in the same order.
        tests: size of the family that the detectable difference allows for (Bonferroni, as Holm's first step).

    Raises:
        ValueError: the two are not of the same problems, or there is none.
    """
    value, low, high = paired_difference(old.tolist(), new.tolist(), confidence=confidence)
    difference = new - old
    better, worse = int((difference > intervals.EQUAL).sum()), int((difference < -intervals.EQUAL).sum())
    noticed = float(intervals.detectable(difference, (1 - confidence) / tests))
    p = float(intervals.p_value(difference))
    return PairedTest(SCORE_TEST, value, low, high, p, len(old), noticed, better, worse)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: the family-wise error stays below the level under any dependence (Holm 1979).

    >>> [round(x, 3) for x in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, running = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        running = max(running, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = running
    return adjusted


def over_seeds(old: Sequence[float], new: Sequence[float], confidence: float = 0.95) -> dict[str, float] | None:
    """Welch's t test of the runs' means: does the method, not this checkpoint, differ?

    Returns:
        value, low, high, p; None with fewer than two runs a side, or where no seed differs from another.
    """
    if min(len(old), len(new)) < 2 or max(np.ptp(old), np.ptp(new)) < 1e-12:
        return None
    value = float(np.mean(new) - np.mean(old))
    parts = [float(np.var(side, ddof=1)) / len(side) for side in (old, new)]
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (old, new), strict=True))
    half = float(special.stdtrit(freedom, 0.5 + confidence / 2)) * error
    p = 2 * float(special.stdtr(freedom, -abs(value) / error))
    return {"value": value, "low": value - half, "high": value + half, "p": p}


def lost(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Problems that the old model solved at least once and the new one never.

    Chance alone loses some: a problem with c of n correct answers is missed by a model that did not change with a probability
    that a Beta(c + 1/2, n - c + 1/2) belief about its pass rate gives (beta-binomial, Jeffreys' prior).

    Returns:
        `solved` and `lost`, `gained` (the reverse of lost), `expected` (losses of a model that did not change), and `places` of
        the lost problems, those that the old model solved most often first.
    """
    solved = [sum(v >= 1 for v in a) for a in before]
    now = [sum(v >= 1 for v in a) for a in after]
    missed = 0.0
    for count, answers, others in zip(solved, before, after, strict=True):
        if count:
            n, m = len(answers), len(others)
            missed += math.exp(
                special.betaln(count + 0.5, n - count + 0.5 + m) - special.betaln(count + 0.5, n - count + 0.5)
            )
    places = [i for i, (c, d) in enumerate(zip(solved, now, strict=True)) if c and not d]
    share = [c / len(a) for c, a in zip(solved, before, strict=True)]
    return {
        "solved": sum(c > 0 for c in solved),
        "lost": len(places),
        "expected": missed,
        "gained": sum(d > 0 and c == 0 for c, d in zip(solved, now, strict=True)),
        "places": sorted(places, key=lambda i: -share[i]),
    }
