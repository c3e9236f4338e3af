"""Scores with intervals: avg@k, unbiased pass@k, maj@k, and paired differences, resampled by problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb

import numpy as np


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that k answers drawn without replacement from n hold a correct one (Chen et al. 2021, 2107.03374).

    Raises:
        ValueError: k is larger than n.

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 2), pass_at_k(4, 3, 2)
    (0.25, 0.5, 1.0)
    """
    if k > n:
        raise ValueError(f"pass@{k} needs at least {k} answers per problem, there are {n}")
    if n - correct < k:
        return 1.0
    return 1.0 - comb(n - correct, k) / comb(n, k)


def majority(answers: Sequence[str], scores: Sequence[float]) -> float:
    """Score of the most frequent answer (maj@n); a tie gives the mean over the tied answers.

    >>> majority(["7", "8", "7"], [1.0, 0.0, 1.0]), majority(["7", "8"], [1.0, 0.0])
    (1.0, 0.5)
    """
    counts = Counter(answers)
    most = max(counts.values())
    value = dict(zip(answers, scores, strict=True))
    tied = [value[a] for a, n in counts.items() if n == most]
    return sum(tied) / len(tied)


def interval(
    values: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    proportion: bool = True,
) -> tuple[float, float]:
    """Bootstrap percentile interval of the mean over problems.

    All values equal would give an interval of no width, which is too narrow for a proportion; the
    Wilson interval is used instead.

    Args:
        values: one per problem.
        proportion: they are scores in [0, 1]; False for lengths, turns and the like.

    >>> interval([1.0] * 4, proportion=False), [round(v, 2) for v in interval([1.0] * 4)]
    ((1.0, 1.0), [0.51, 1.0])
    """
    x = np.asarray(values, dtype=np.float64)
    if len(x) == 0:
        return float("nan"), float("nan")
    if proportion and np.ptp(x) == 0 and 0 <= x[0] <= 1:
        return wilson(float(x.sum()), len(x), confidence)
    draw = np.random.default_rng(seed)
    means = np.empty(resamples)
    for start in range(0, resamples, 256):
        count = min(256, resamples - start)
        means[start : start + count] = x[draw.integers(0, len(x), (count, len(x)))].mean(1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def wilson(correct: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion.

    >>> [round(x, 3) for x in wilson(0, 10)], [round(x, 3) for x in wilson(5, 10)]
    ([0.0, 0.278], [0.237, 0.763])
    """
    from statistics import NormalDist

    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p, z2 = correct / n, z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z * ((p * (1 - p) / n + z2 / (4 * n * n)) ** 0.5) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_difference(
    first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Mean of second - first over the same problems, with a bootstrap interval: (difference, low, high).

    Raises:
        ValueError: the lengths differ; the two were not measured on the same problems.
    """
    if len(first) != len(second):
        raise ValueError(f"paired comparison of {len(first)} and {len(second)} problems")
    difference = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    if np.ptp(difference) == 0:
        value = float(difference[0])
        return value, value, value
    low, high = interval(difference.tolist(), confidence=confidence, resamples=resamples, seed=seed)
    return float(difference.mean()), low, high


def summarise(
    scores: Sequence[Sequence[float]],
    answers: Sequence[Sequence[str]],
    lengths: Sequence[Sequence[float]],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> dict[str, dict[str, float]]:
    """Every metric of one checkpoint on one benchmark.

    Args:
        scores: per problem, the score of each of its k answers (correct from 1 on).
        answers: per problem, the answers' texts in a form that can be compared.
        lengths: per problem, the answers' lengths in tokens.

    Returns:
        avg@k, pass@1, pass@k (powers of two up to k), maj@k and mean_length, each with value, low, high, n.
    """
    k = min(len(s) for s in scores)
    correct = [[float(v >= 1) for v in s] for s in scores]
    columns: dict[str, list[float]] = {f"avg@{k}": [float(np.mean(s)) for s in correct]}
    powers = [2**i for i in range(12) if 2**i < k]
    for j in sorted({1, *powers, k}):
        columns[f"pass@{j}"] = [pass_at_k(len(s), int(sum(s)), j) for s in correct]
    if k > 2:
        columns[f"maj@{k}"] = [majority(a, s) for a, s in zip(answers, correct, strict=True)]
    if any(0 < v < 1 for s in scores for v in s):
        columns["score"] = [float(np.mean(s)) for s in scores]
    cells = {name: mean_cell(v, confidence=confidence, resamples=resamples) for name, v in columns.items()}
    means = [float(np.mean(n)) for n in lengths]
    return cells | {"mean_length": mean_cell(means, confidence=confidence, resamples=resamples, proportion=False)}


def cost_cell(
    costs: Sequence[float], solved: Sequence[float], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> dict[str, float] | None:
    """What one solved task costs: all costs over all solutions, failures included, as value, low, high, n; None where none is solved.

    The interval is a bootstrap over problems of that ratio; a resample without any solution is left out, so where few problems are
    solved its upper end is too low.

    Args:
        costs: per problem, what its answers cost together.
        solved: per problem, how many of them are correct.

    >>> cost_cell([10.0, 30.0], [1.0, 1.0])["value"], cost_cell([10.0, 30.0], [0.0, 1.0])["value"], cost_cell([9.0], [0.0])
    (20.0, 40.0, None)
    """
    cost, count = np.asarray(costs, dtype=np.float64), np.asarray(solved, dtype=np.float64)
    if count.sum() == 0:
        return None
    draw = np.random.default_rng(seed)
    ratios: list[float] = []
    for start in range(0, resamples, 256):
        drawn = draw.integers(0, len(cost), (min(256, resamples - start), len(cost)))
        totals = count[drawn].sum(1)
        ratios += (cost[drawn].sum(1)[totals > 0] / totals[totals > 0]).tolist()
    tail = (1 - confidence) / 2
    value = float(cost.sum() / count.sum())
    low, high = np.quantile(ratios or [value], [tail, 1 - tail])
    return {"value": value, "low": float(low), "high": float(high), "n": len(cost)}


def mean_cell(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 2000, proportion: bool = True
) -> dict[str, float]:
    """Mean over problems as value, low, high, n; see `interval`."""
    low, high = interval(values, confidence=confidence, resamples=resamples, proportion=proportion)
    return {"value": float(np.mean(values)), "low": low, "high": high, "n": len(values)}
