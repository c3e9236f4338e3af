"""Intervals and tests of means over problems: the one implementation behind every interval and p-value that is printed.

A problem is the unit: its answers are correlated, so they are averaged first (Miller 2024, 2411.00640). benchmarks/intervals.py measures
level, coverage and power of these functions and of what else the literature offers; docs/evaluation.md has its table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

Floats = np.ndarray
PSEUDO = 3.0
"""Pseudo-problems, half of them better and half of them worse by the size of a usual change. Bonett and Price (2012) add 2; with 3 a rare
change in one direction is covered too, and the test decides as the exact one of McNemar does where few pairs are discordant."""
EQUAL = 1e-12
"""Means of answers that differ by less are the same."""


def quantile(confidence: float) -> float:
    """z of a two-sided interval.

    >>> round(quantile(0.95), 3)
    1.96
    """
    return float(special.ndtri(0.5 + confidence / 2))


def _sums(deviation: Floats, unit: float) -> tuple[Floats, Floats]:
    """Sum of squares, and mean square of a change that was not seen yet: that of those seen, one more of a whole unit among them."""
    squares = (deviation**2).sum(-1)
    changed = (np.abs(deviation) > EQUAL).sum(-1)
    return squares, (squares + unit**2) / (changed + 1)


def _augmented(difference: ArrayLike) -> tuple[Floats, Floats, float]:
    """Sum, sum of squares and number of the problems with the pseudo-problems."""
    values = np.asarray(difference, dtype=np.float64)
    values = np.where(np.abs(values) > EQUAL, values, 0.0)
    squares, unseen = _sums(values, 1.0)
    return values.sum(-1), squares + PSEUDO * unseen, values.shape[-1] + PSEUDO


def score_statistic(difference: ArrayLike) -> Floats:
    """Standard normal statistic of "the two are equally good": the sum over the root of the sum of squares, pseudo-problems among them.

    With one answer to each problem it is (b - c) / sqrt(b + c + 3), McNemar's with `PSEUDO` more discordant pairs. The variance is
    that around 0 as in a score test, so the statistic has the tails of a sign-flip test.

    Args:
        difference: [..., problems], each in [-1, 1].

    Returns:
        float64 [...].

    >>> score_statistic([1, 1, 1, 1, 1, 1, 0, 0]).round(3).item()
    2.0
    """
    total, squares, _ = _augmented(difference)
    return total / np.sqrt(squares)


def p_value(difference: ArrayLike) -> Floats:
    """Two-sided p of `score_statistic`: below 1 - confidence exactly where `difference_interval` leaves 0 out.

    >>> p_value([1, 1, 1, 1, 1, 1, 0, 0]).round(4).item(), p_value([0.0] * 9).item()
    (0.0455, 1.0)
    """
    return 2 * special.ndtr(-np.abs(score_statistic(difference)))


def difference_interval(difference: ArrayLike, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """Interval of a mean difference of two models on the same problems: the values that the score test does not refuse.

    Args:
        difference: [..., problems], new - old, each in [-1, 1].

    Returns:
        Lower and upper ends, each float64 [...] in [-1, 1], the observed mean between them.

    >>> [end.round(3).item() for end in difference_interval([1.0] * 249 + [0.0])]
    [0.964, 1.0]
    >>> [end.round(4).item() for end in difference_interval([1.0] + [0.0] * 1999)]
    [-0.0015, 0.0025]
    """
    total, squares, count = _augmented(difference)
    z, mean = quantile(confidence), total / count
    variance = np.maximum(squares / count - mean**2, 0.0)
    half = z * np.sqrt(variance / (count - z * z)) if count > z * z else np.full_like(mean, 2.0)
    observed = total / (count - PSEUDO)
    return np.maximum(np.minimum(mean - half, observed), -1.0), np.minimum(np.maximum(mean + half, observed), 1.0)


def detectable(difference: ArrayLike, alpha: float = 0.05, power: float = 0.8) -> Floats:
    """True mean difference that a two-sided score test at `alpha` notices with the given power, by the spread that was seen: [...].

    Normal approximation, the pseudo-problems allowed for. Of few problems it is more than 1, and 2 at most.

    >>> detectable([1.0] * 5).item() > 1, detectable([0.0] * 250).round(2).item()
    (True, 0.02)
    """
    total, squares, count = _augmented(difference)
    spread = np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0.0))
    z = quantile(1 - alpha)
    if count <= z * z:
        return np.full_like(spread, 2.0)
    mean = z * spread / np.sqrt(count - z * z) + special.ndtri(power) * spread / np.sqrt(count)
    return np.minimum(mean * count / (count - PSEUDO), 2.0)


def wilson(correct: float, n: float, confidence: float = 0.95, *, z: float | None = None) -> tuple[float, float]:
    """Wilson score interval of a proportion.

    Args:
        z: a quantile in place of the normal one of `confidence`, such as Student's.

    >>> [round(x, 3) for x in wilson(0, 10)], [round(x, 3) for x in wilson(5, 10)]
    ([0.0, 0.278], [0.237, 0.763])
    """
    z = quantile(confidence) if z is None else z
    p, z2 = correct / n, z * z
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z * ((p * (1 - p) / n + z2 / (4 * n * n)) ** 0.5) / (1 + z2 / n)
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def share_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a mean of shares: Wilson's with the effective number of problems.

    With one answer to each problem it is Wilson's. Shares of several answers vary less than verdicts do; the ratio of the two variances
    (the design effect of survey sampling, Korn and Graubard 1998; one problem of full variance is added, so equal shares are not taken
    for certain) says for how many verdicts they stand.

    Args:
        values: [problems], each in [0, 1], at least one.

    >>> [round(end, 4) for end in share_interval([0.0] * 250)]
    [0.0, 0.0151]
    >>> [round(end, 3) for end in share_interval([0.25, 0.5, 0.5, 0.75])]
    [0.204, 0.796]
    """
    x = np.asarray(values, dtype=np.float64)
    n, mean = len(x), float(x.mean())
    full = n * mean * (1 - mean)
    effect = min(1.0, (float(((x - mean) ** 2).sum()) + 1) / (full + 1))
    return wilson(mean * n / effect, n / effect, confidence)


def mean_interval(
    values: ArrayLike, confidence: float = 0.95, *, least: float = -np.inf, unit: float = 1.0
) -> tuple[float, float]:
    """Student's interval of the mean of quantities without an upper bound, with the pseudo-problems of differences.

    Args:
        values: [problems], at least one.
        least: what no value can be below, 0 for lengths.
        unit: a change that counts, such as a token: equal values are known to about a unit over their number.

    >>> [round(end, 1) for end in mean_interval([12.0] * 5, least=0)], [round(end, 1) for end in mean_interval([9, 14, 11, 20, 16])]
    ([10.9, 13.1], [7.2, 20.8])
    """
    x = np.asarray(values, dtype=np.float64)
    n, mean = len(x), float(x.mean())
    squares, unseen = _sums(x - mean, unit)
    freedom = max(1, n - 1)
    half = float(special.stdtrit(freedom, 0.5 + confidence / 2) * np.sqrt((squares + PSEUDO * unseen) / (n * freedom)))
    return max(least, mean - half), mean + half


def body(value: float, ends: tuple[Any, Any], n: int) -> dict[str, float]:
    """A cell of the results: value, low, high, n."""
    return {"value": float(value), "low": float(ends[0]), "high": float(ends[1]), "n": n}
