"""Weights of particles: Feynman-Kac steering (arXiv 2501.06848) carried over from diffusion to text that is written from left to right.

A particle is an answer that is drawn step by step from the model p. After step t its score r_t gives it the potential G_t, and particles
are resampled by the products of their potentials. With one of the first three potentials the product over a whole answer is
exp(weight r(answer)), whatever the scores on the way were, so that many particles have the distribution

    p(answer) exp(weight r(answer)) / Z

and the scores of steps only decide how many particles that takes. With r_0 = 0 and T the last step:

    difference   G_t = exp(weight (r_t - r_{t-1}))
    max          G_t = exp(weight max_{s <= t} r_s),    G_T = exp(weight r_T) / (G_1 ... G_{T-1})
    sum          G_t = exp(weight (r_1 + ... + r_t)),   G_T = exp(weight r_T) / (G_1 ... G_{T-1})
    current      G_t = exp(weight r_t), at every round for particles that have ended too

`current` is the weight of particle filtering for inference-time scaling (arXiv 2502.01618): there r is the logit of a process reward
model's probability and weight 1, particles are resampled at every step (`resample_below: 1`), and the answer with the highest score is
given. Its product over an answer grows with the number of steps and is no tilt of p by the score of the answer alone.

Checked against the papers' public code (its_hub; forks of FK-Diffusion-Steering), with two differences from the latter: weights are
carried on where particles are not resampled, and `max` remembers the maximum where that code remembers the last score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.recipe.search import Potential


@dataclass(frozen=True)
class Weight:
    """What a particle carries; logarithms in nats."""

    log_weight: float = 0.0
    """Of its potentials since particles were last resampled."""
    log_potentials: float = 0.0
    """Of all potentials of its text."""
    largest: float = -math.inf
    """weight max r so far."""
    total: float = 0.0
    """weight sum of r so far."""
    last: float = 0.0
    """weight r of its last step."""


def weighed(before: Weight, potential: Potential, weight: float, score: float, *, ended: bool) -> Weight:
    """A particle after one step more.

    Args:
        score: r_t; NaN for none, which leaves the particle without any weight until particles are resampled.
        ended: it is the answer's last step.

    >>> first = weighed(Weight(), "sum", 1.0, 2.0, ended=False)
    >>> second = weighed(first, "sum", 1.0, 3.0, ended=False)
    >>> first.log_weight, second.log_weight, weighed(second, "sum", 1.0, 4.0, ended=True).log_weight
    (2.0, 7.0, 4.0)
    """
    if math.isnan(score):
        return replace(before, log_weight=-math.inf)
    reward = weight * score
    largest, total = max(before.largest, reward), before.total + reward
    if potential == "difference":
        log_potential = reward - before.last
    elif potential == "current":
        log_potential = reward
    elif ended:
        log_potential = reward - before.log_potentials
    else:
        log_potential = largest if potential == "max" else total
    return Weight(before.log_weight + log_potential, before.log_potentials + log_potential, largest, total, reward)


def restarted(weight: Weight) -> Weight:
    """A particle that was chosen to go on: as heavy as all others, with the history of its scores.

    >>> restarted(Weight(2.0, 1.0, 3.0, 3.0, 3.0))
    Weight(log_weight=0.0, log_potentials=1.0, largest=3.0, total=3.0, last=3.0)
    """
    return replace(weight, log_weight=0.0)


def shares(log_weights: Sequence[float]) -> list[float]:
    """Each particle's share of the weight; equal ones where none has any.

    >>> shares([0.0, 0.0]), shares([-math.inf, 5.0]), shares([-math.inf, -math.inf])
    ([0.5, 0.5], [0.0, 1.0], [0.5, 0.5])
    """
    values = np.asarray(log_weights, dtype=np.float64)
    top = values.max()
    if top == -math.inf:
        return [1 / len(values)] * len(values)
    weights = np.exp(values - top)
    return [float(share) for share in weights / weights.sum()]


def effective(shares_: Sequence[float]) -> float:
    """How many equally heavy particles have the same sum of squares (Kong 1992).

    >>> effective([0.5, 0.5]), effective([1.0, 0.0])
    (2.0, 1.0)
    """
    return 1 / sum(share * share for share in shares_)


def systematic(shares_: Sequence[float], point: float, count: int | None = None) -> list[int]:
    """Which particles go on: those at `count` equally spaced places of the cumulative shares.

    Each comes `count * share` times, rounded up or down, and on average exactly so often.

    Args:
        point: uniform in [0, 1).
        count: how many are wanted; default: as many as there are.

    >>> systematic([0.5, 0.25, 0.25, 0.0], 0.4), systematic([0.1, 0.9], 0.4)
    ([0, 0, 1, 2], [1, 1])
    """
    count = len(shares_) if count is None else count
    cumulative = np.cumsum(shares_)
    positions = (np.arange(count) + point) / count * cumulative[-1]
    picked = np.searchsorted(cumulative, positions, side="right")
    last = max(index for index, share in enumerate(shares_) if share > 0)  # rounding can put a place on the upper end
    return [min(int(index), last) for index in picked]
