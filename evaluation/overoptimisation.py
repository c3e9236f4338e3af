"""Over-optimisation: the gold score over the distance that optimising a proxy moved the policy, with the fitted law.

The distance is d = sqrt(KL to the reference), in nats of a whole completion (Gao et al., 2210.10760). Best of n: gold(d) = g0 + d (alpha -
beta d); reinforcement learning, and direct alignment after Rafailov et al. (2406.02900): gold(d) = g0 + d (alpha - beta log d).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

Law = Literal["best_of_n", "rl"]
Floats = NDArray[np.float64]
FEWEST = 4
"""Points of a curve that a fit of three coefficients needs at least."""


@dataclass(frozen=True)
class Curve:
    """Points of one way of optimising a proxy."""

    name: str
    law: Law
    distance: Floats
    """sqrt(KL) of each point, nats^(1/2)."""
    gold: Floats
    proxy: Floats
    """NaN where it was not measured."""


@dataclass(frozen=True)
class Fit:
    """The law's coefficients, each with the ends of its interval."""

    start: float
    """Gold at distance 0."""
    alpha: tuple[float, float, float]
    """Value, lower and upper end."""
    beta: tuple[float, float, float]
    error: float
    """Root mean square of the residuals."""
    peak: tuple[float, float] | None
    """Distance at which the law's gold is highest, and that gold; None where it rises for ever (beta is not positive)."""


def best_of_n_kl(n: int) -> float:
    """KL of best of n to the sampled policy: log n - (n - 1) / n, an upper bound that ties do not reach.

    >>> [round(best_of_n_kl(n), 6) for n in (1, 4, 16, 64)]
    [0.0, 0.636294, 1.835089, 3.174508]
    """
    return math.log(n) - (n - 1) / n


def best_of_n(proxy: Sequence[float], gold: Sequence[float], n: int) -> float:
    """Unbiased estimate of the gold score of the proxy's best of n, from all N >= n completions of a problem.

    Every subset of n is counted; completions of equal proxy share the mean of their gold, the average over their orders.

    Raises:
        ValueError: n is less than 1 or more than N.

    >>> proxy, gold = [0.1, 0.9, 0.4, 0.7, 1.5], [0.2, 0.8, 0.5, 0.9, 0.1]
    >>> [round(best_of_n(proxy, gold, n), 6) for n in (1, 2, 3, 4, 5)]
    [0.5, 0.51, 0.39, 0.24, 0.1]
    """
    count = len(proxy)
    if not 1 <= n <= count:
        raise ValueError(f"best of {n} of {count} completions")
    values, place = np.unique(np.asarray(proxy, dtype=float), return_inverse=True)
    totals = np.bincount(place, weights=np.asarray(gold, dtype=float), minlength=len(values))
    means = (totals / np.bincount(place, minlength=len(values)))[np.sort(place)]
    logs = [math.lgamma(i) - math.lgamma(n) - math.lgamma(i - n + 1) for i in range(n, count + 1)]
    log_subsets = math.lgamma(count + 1) - math.lgamma(n + 1) - math.lgamma(count - n + 1)
    return float(
        sum(math.exp(log - log_subsets) * gold_mean for log, gold_mean in zip(logs, means[n - 1 :], strict=True))
    )


def law(kind: Law, distance: Floats) -> Floats:
    """The two functions of the distance that alpha and -beta multiply, [points, 2].

    >>> np.round(law("best_of_n", np.array([1.0, 2.0, 3.0])) @ [1, -0.25], 6).tolist()
    [0.75, 1.0, 0.75]
    >>> np.round(law("rl", np.array([0.0, 1.0, 2.0, 5.0])) @ [1, -0.4], 6).tolist()
    [0.0, 1.0, 1.445482, 1.781124]
    """
    logs = distance if kind == "best_of_n" else np.log(np.where(distance > 0, distance, 1.0))
    return np.stack([distance, distance * logs], 1)


def peak(kind: Law, alpha: float, beta: float) -> float | None:
    """Distance at which the law is highest.

    >>> peak("best_of_n", 1.0, 0.25), round(peak("rl", 1.0, 0.4), 6), peak("rl", 1.0, 0.0)
    (2.0, 4.481689, None)
    """
    if beta <= 0:
        return None
    exponent = alpha / beta - 1
    if kind == "rl":
        return math.exp(exponent) if exponent < 700 else None
    return max(0.0, alpha / (2 * beta))


def fit(curve: Curve, *, confidence: float = 0.95) -> Fit | None:
    """Least squares of the curve's law, with Student's intervals of the coefficients from the residuals.

    The points of a training run follow each other, so that their intervals are those of the curve's shape and no statement about another
    run: several seeds are given as points of one curve. None with fewer than `FEWEST` points of different distance.
    """
    known = np.isfinite(curve.distance) & np.isfinite(curve.gold)
    distance, gold = curve.distance[known], curve.gold[known]
    if len(np.unique(distance)) < FEWEST:
        return None
    matrix = np.concatenate([np.ones((len(distance), 1)), law(curve.law, distance)], 1)
    solved = np.linalg.lstsq(matrix, gold, rcond=None)[0]
    start, alpha, minus_beta = (float(value) for value in solved)
    squares, freedom = float(((gold - matrix @ solved) ** 2).sum()), len(gold) - matrix.shape[1]
    spread = np.sqrt(np.diag(np.linalg.pinv(matrix.T @ matrix)) * squares / freedom)
    half = special.stdtrit(freedom, 0.5 + confidence / 2) * spread
    top = peak(curve.law, alpha, -minus_beta)
    at_top = None if top is None else float(start + law(curve.law, np.array([top]))[0] @ [alpha, minus_beta])
    return Fit(
        start=start,
        alpha=(alpha, alpha - float(half[1]), alpha + float(half[1])),
        beta=(-minus_beta, -minus_beta - float(half[2]), -minus_beta + float(half[2])),
        error=math.sqrt(squares / len(gold)),
        peak=None if top is None or at_top is None else (top, at_top),
    )


def best_of_n_curve(name: str, problems: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Curve:
    """The curve of best of n over problems, n on a logarithmic grid up to the completions that every problem has.

    Args:
        problems: proxy and gold scores of each problem's completions.
    """
    most = min(len(proxy) for proxy, _ in problems)
    grid = sorted(
        {round(2 ** (step / 2)) for step in range(2 * most.bit_length() + 1)} & set(range(1, most + 1)) | {most}
    )
    by_n: Callable[[int, bool], float] = lambda n, of_gold: float(  # noqa: E731
        np.mean([best_of_n(proxy, gold if of_gold else proxy, n) for proxy, gold in problems])
    )
    return Curve(
        name,
        "best_of_n",
        np.sqrt([best_of_n_kl(n) for n in grid]),
        np.array([by_n(n, True) for n in grid]),
        np.array([by_n(n, False) for n in grid]),
    )
