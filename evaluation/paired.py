"""Two models on the same problems: exact tests, bootstraps by problem, and what could have been noticed.

A problem is the unit: its answers are correlated, so nothing here resamples answers. Differences are `new - old`, in [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from evaluation.statistics import pass_at_k

Floats = np.ndarray
CHUNK = 4_000_000
"""Resampled values held at once."""


@dataclass(frozen=True)
class PairedTest:
    """A paired comparison."""

    test: str
    """How `p` was found."""
    value: float
    """Mean difference, new - old."""
    low: float
    high: float
    p: float
    """Two-sided."""
    n: int
    """Problems."""
    detectable: float | None
    """Smallest true difference that this many problems would have shown with 80 % power; None where nothing varied."""
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


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact binomial test of the discordant pairs (McNemar's exact test where scores are 0 or 1).

    >>> round(sign_test(1, 9), 4), sign_test(0, 0)
    (0.0215, 1.0)
    """
    pairs = better + worse
    if pairs == 0:
        return 1.0
    return min(1.0, 2 * float(special.bdtr(min(better, worse), pairs, 0.5)))


def resampled_means(values: Floats, resamples: int, seed: int) -> tuple[Floats, Floats]:
    """Bootstrap means and standard errors by problem.

    Args:
        values: float64 [problems] or [problems, columns]; columns are resampled together.

    Returns:
        means and standard errors, each [resamples] or [resamples, columns].
    """
    table = values.reshape(len(values), -1)
    n = len(table)
    draw = np.random.default_rng(seed)
    means, squares = np.empty((resamples, table.shape[1])), np.empty((resamples, table.shape[1]))
    rows = max(1, CHUNK // n)
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        weights = draw.multinomial(n, np.full(n, 1 / n), size=size).astype(np.float64) / n
        means[start : start + size] = weights @ table
        squares[start : start + size] = weights @ table**2
    variance = np.clip(squares - means**2, 0, None)
    errors = np.sqrt(variance / max(1, n - 1))
    shape = (resamples, *values.shape[1:])
    return means.reshape(shape), errors.reshape(shape)


def certain(value: float, n: int, confidence: float) -> tuple[float, float]:
    """Interval of a mean in [-1, 1] where all n differences are equal: the others were too rare to be met.

    >>> [round(x, 3) for x in certain(0.0, 20, 0.95)]
    [-0.168, 0.168]
    """
    unseen = 1 - ((1 - confidence) / 2) ** (1 / n)
    return value - unseen * (1 + value), value + unseen * (1 - value)


def cluster_bootstrap(
    difference: Floats, *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """Studentised bootstrap of the mean difference by problem: (low, high, two-sided p).

    The t statistics of the resamples are compared with the observed one (Efron and Tibshirani 1993, chapters 12 and 16), which
    keeps its level with few problems better than percentiles do. Resamples without any variation count as extreme.
    """
    n, mean = len(difference), float(difference.mean())
    if np.ptp(difference) == 0:
        low, high = certain(mean, n, confidence)
        return low, high, 1.0 if mean == 0 else min(1.0, 2.0 ** (1 - n))
    error = float(difference.std(ddof=1)) / math.sqrt(n)
    means, errors = resampled_means(difference, resamples, seed)
    shift = means - mean
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(errors > 0, shift / errors, np.where(shift == 0, 0.0, np.sign(shift) * np.inf))
    p = (1 + np.count_nonzero(np.abs(t) >= abs(mean) / error - 1e-12)) / (resamples + 1)
    tail = (1 - confidence) / 2
    from_low, from_high = np.quantile(t, [tail, 1 - tail], method="nearest")
    return max(-1.0, mean - float(from_high) * error), min(1.0, mean - float(from_low) * error), float(p)


def detectable(difference: Floats, alpha: float, power: float = 0.8) -> float | None:
    """Smallest true mean difference that a two-sided test at `alpha` notices with the given power.

    Normal approximation with the observed spread between problems; None where nothing varied.
    """
    if len(difference) < 2 or np.ptp(difference) == 0:
        return None
    error = float(difference.std(ddof=1)) / math.sqrt(len(difference))
    return float((special.ndtri(1 - alpha / 2) + special.ndtri(power)) * error)


def compare(
    old: Floats, new: Floats, *, single: bool, confidence: float = 0.95, resamples: int = 10_000, tests: int = 1
) -> PairedTest:
    """Compare two models problem by problem.

    Args:
        old: float64 [problems], score of each problem in [0, 1].
        new: the same problems, in the same order.
        single: every score is one answer, correct or not: the exact test applies.
        tests: size of the family that the detectable difference allows for (Bonferroni, as Holm's first step).

    Raises:
        ValueError: the two are not of the same problems, or there is none.
    """
    if len(old) != len(new) or len(old) == 0:
        raise ValueError(f"paired comparison of {len(old)} and {len(new)} problems")
    difference = new - old
    better, worse = int((difference > 1e-12).sum()), int((difference < -1e-12).sum())
    low, high, p = cluster_bootstrap(difference, confidence=confidence, resamples=resamples)
    name = "paired bootstrap by problem"
    if single:
        p, name = sign_test(better, worse), "exact McNemar"
    noticed = detectable(difference, (1 - confidence) / tests)
    return PairedTest(name, float(difference.mean()), low, high, p, len(old), noticed, better, worse)


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
