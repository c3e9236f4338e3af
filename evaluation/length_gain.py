"""How much of a gain remains among answers of about equal length: what a model gained by more than the length of its answers.

Singhal et al. (2310.03716) divide answers by their length, and hold the mean difference inside the parts against the whole one. Length is
not set by the question, so this describes a gain and explains nothing: longer answers may be what makes them correct.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

BUCKETS = 10
"""Parts of about equally many answers that lengths are divided into."""
NOTICED = 0.05
"""Mean lengths that differ by a smaller share are the same."""
Floats = np.ndarray


class Answers(NamedTuple):
    """Of a problem, what a checkpoint answered."""

    lengths: Sequence[float]
    scores: Sequence[float]


class LengthGain(NamedTuple):
    """A gain, and what of it remains at equal length."""

    old_length: float
    """Mean over problems."""
    new_length: float
    gain: float
    """Mean difference of the scores."""
    within: float
    """That inside buckets of length, weighted by their answers."""
    low: float
    high: float
    covered: float
    """Share of the answers in buckets that both have answers in; the others count in `gain` alone."""


def length_gain(old: Sequence[Answers], new: Sequence[Answers], confidence: float = 0.95) -> LengthGain | None:
    """A gain at equal length, with an interval over problems (jackknife, Student's quantile).

    Args:
        old: of each problem, in the order of `new`.

    Returns:
        None with fewer than three problems, or where no bucket has answers of both.

    >>> short, long = Answers([1, 1, 9], [0, 0, 1]), Answers([1, 9, 9], [0, 1, 1])
    >>> result = length_gain([short] * 4, [long] * 4)
    >>> round(result.gain, 3), round(result.within, 3)
    (0.333, 0.0)
    """
    if len(old) < 3:
        return None
    lengths = np.concatenate([np.asarray(each.lengths, dtype=np.float64) for each in (*old, *new)])
    edges = np.unique(np.quantile(lengths, np.arange(1, BUCKETS) / BUCKETS, method="higher"))
    sums = np.stack([_sums(side, edges) for side in (old, new)])  # [sides, problems, (answers, scores), buckets]
    total = sums.sum(1)  # [sides, (answers, scores), buckets]
    both = (total[:, 0] > 0).all(0)
    if not both.any():
        return None
    within = float(_within(total))
    left_out = np.array([_within(total - sums[:, problem]) for problem in range(len(old))])
    count = len(left_out)
    spread = np.sqrt((count - 1) / count * ((left_out - left_out.mean()) ** 2).sum())
    half = float(special.stdtrit(count - 1, 0.5 + confidence / 2) * spread)
    means = [[np.mean(each.lengths), np.mean(each.scores)] for side in (old, new) for each in side]
    (old_length, old_score), (new_length, new_score) = np.reshape(means, (2, count, 2)).mean(1).tolist()
    covered = float(total[:, 0, both].sum() / total[:, 0].sum())
    return LengthGain(old_length, new_length, new_score - old_score, within, within - half, within + half, covered)


def differs(result: LengthGain) -> bool:
    """Whether the lengths differ so much that the gain at equal length says something."""
    return abs(result.new_length - result.old_length) > NOTICED * max(result.old_length, 1.0)


def _sums(side: Sequence[Answers], edges: Floats) -> Floats:
    """[problems, (answers, sum of their scores), buckets]; a bucket ends before its edge."""
    table = np.zeros((len(side), 2, len(edges) + 1))
    for row, each in zip(table, side, strict=True):
        places = np.searchsorted(edges, np.asarray(each.lengths, dtype=np.float64), side="right")
        np.add.at(row[0], places, 1.0)
        np.add.at(row[1], places, np.asarray(each.scores, dtype=np.float64))
    return table


def _within(total: Floats) -> Floats:
    """The mean difference inside buckets, of [sides, (answers, scores), buckets]."""
    answers, scores = total[:, 0], total[:, 1]
    both = (answers > 0.5).all(0)
    weights = answers.sum(0) * both
    means = scores / np.maximum(answers, 1.0)
    return ((means[1] - means[0]) * weights).sum() / max(weights.sum(), 1.0)
