"""Ratings of players from the points of their games with each other, with intervals that know which games began alike.

The model is that of Bradley and Terry (1952): player i gets a share 1 / (1 + 10 ** ((r_j - r_i) / 400)) of the points in games with j, on
the scale of Elo; a draw is half a point for each. tests/evaluation/test_ratings.py simulates how often the intervals cover the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from pipelines.base import intervals

Floats = np.ndarray
SCALE = 400 / np.log(10)
"""Points of rating for a unit of log-odds."""
DRAWN = 0.25
"""Openings added to every pairing, with the points shared: a player who wins every game keeps a finite rating. Chosen by simulation: with
0.25 the intervals cover what they should at 10, 30 and 82 openings and up to 870 points between two players; with 1 they fall to 86 %."""
ROUNDS = 100
"""Of Newton's method, at most; it needs about six."""


@dataclass(frozen=True)
class Rating:
    """A player's place."""

    name: str
    rating: float
    """In points of Elo, over the first player's, which is 0."""
    low: float | None
    """Ends of its interval; None where the games do not bound it: the player lost, or won, all of them. The first player has 0 and 0."""
    high: float | None
    points: float
    """Share of the points in all its games, from 0 to 1."""
    points_low: float
    points_high: float


def rate(names: Sequence[str], points: Floats, confidence: float = 0.95) -> list[Rating]:
    """The players, best first.

    A rating's interval is Wilson's of the share of the points that it stands for against the first player, for as many games as have the
    variance of that share. The variance is the sandwich of the likelihood's with openings as clusters (Liang and Zeger 1986): all games
    from an opening, whoever plays them, may be alike. Quantiles are Student's with as many degrees of freedom as there are openings, less
    one.

    Args:
        names: of the players.
        points: float [players, players, openings], the mean points in [0, 1] of the first player against the second in the games from an
            opening; `points[j, i]` is 1 - `points[i, j]`, and NaN stands where there was no game, as on the diagonal.

    Raises:
        ValueError: fewer than two openings, or a player without a game with another.
    """
    count, _, openings = points.shape
    if openings < 2:
        raise ValueError("ratings need games from two openings or more")
    if np.isnan(points).all(axis=(1, 2)).any():
        raise ValueError("a player has no games")
    first, second = np.triu_indices(count, 1)
    played = points[first, second]  # [pairs, openings]
    design = np.zeros((len(first), count))
    design[np.arange(len(first)), first], design[np.arange(len(first)), second] = 1.0, -1.0
    design = design[:, 1:]  # the first player's rating is 0
    strengths, covariance = _fit(design, played)
    quantile = float(special.stdtrit(openings - 1, 0.5 + confidence / 2))
    ratings = []
    for player, name in enumerate(names):
        own = points[player][:, ~np.isnan(points[player]).all(0)]  # [players, openings that it played]
        ends = intervals.share_interval(np.nanmean(own, axis=0), confidence)
        value = low = high = 0.0
        if player:
            value = float(strengths[player - 1])
            low, high = _ends(value, float(covariance[player - 1, player - 1]), quantile)
        bounded = [player == 0 or bool((own[~np.isnan(own)] != end).any()) for end in (0, 1)]
        low_end, high_end = (SCALE * end if known else None for end, known in zip((low, high), bounded, strict=True))
        mean = float(np.nanmean(own))
        ratings.append(Rating(name, SCALE * value, low_end, high_end, mean, *ends))
    return sorted(ratings, key=lambda each: -each.rating)


def _fit(design: Floats, played: Floats) -> tuple[Floats, Floats]:
    """Log-odds of the players but the first, and their covariance.

    Args:
        design: [pairs, players - 1], 1 for the first player of a pair and -1 for the second.
        played: [pairs, openings], the first's points; NaN where there was no game.
    """
    games = (~np.isnan(played)).sum(1) + DRAWN  # [pairs]
    won = np.nansum(played, axis=1) + DRAWN / 2
    strengths = np.zeros(design.shape[1])
    for _ in range(ROUNDS):
        share = special.expit(design @ strengths)
        information = design.T @ (design * (games * share * (1 - share))[:, None])
        step = np.linalg.solve(information, design.T @ (won - games * share))
        strengths += step
        if np.abs(step).max() < 1e-10:
            break
    share = special.expit(design @ strengths)
    errors = np.where(np.isnan(played), 0.0, played - share[:, None])  # [pairs, openings]
    scores = design.T @ errors  # [players - 1, openings]
    drawn = design.T @ (design * (DRAWN * (0.25 + (0.5 - share) ** 2))[:, None])  # what one more opening would spread
    inverse = np.linalg.inv(design.T @ (design * (games * share * (1 - share))[:, None]))
    openings = played.shape[1]
    return strengths, inverse @ (scores @ scores.T * openings / (openings - 1) + drawn) @ inverse


def _ends(value: float, variance: float, quantile: float) -> tuple[float, float]:
    """Ends of the interval of a difference in log-odds."""
    share = float(special.expit(value))
    games = 1 / (share * (1 - share) * variance)
    low, high = intervals.wilson(share * games, games, z=quantile)
    return float(special.logit(low)), float(special.logit(high))
