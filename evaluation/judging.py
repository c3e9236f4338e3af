"""How far a judge can be believed: agreement with gold verdicts, what it makes of length, and whether a text can order it about."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy

from pipelines.base import intervals


def separation(values: Sequence[float], correct: Sequence[bool]) -> float:
    """Area under the ROC curve: how often a correct completion gets more than an incorrect one, ties as half; NaN without both.

    >>> separation([0.9, 0.4, 0.4, 0.1], [True, True, False, False])
    0.875
    """
    good, bad = _sides(values, correct)
    return float(_beaten(good, bad).mean()) if len(good) and len(bad) else math.nan


def _sides(values: Sequence[float], correct: Sequence[bool]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The values of correct and of incorrect completions, float64."""
    everything, verdicts = numpy.asarray(values, dtype=numpy.float64), numpy.asarray(correct, dtype=bool)
    return everything[verdicts], everything[~verdicts]


def _beaten(values: numpy.ndarray, others: numpy.ndarray) -> numpy.ndarray:
    """Of each value, the share of the others that are below it, ties as half."""
    ordered = numpy.sort(others)
    below, up_to = numpy.searchsorted(ordered, values, "left"), numpy.searchsorted(ordered, values, "right")
    return (below + up_to) / 2 / len(others)


def correlation(values: Sequence[float], others: Sequence[float]) -> float:
    """Pearson's, or NaN where one of them does not vary.

    >>> round(correlation([1, 2, 3], [2, 4, 7]), 3)
    0.993
    """
    try:
        return statistics.correlation(values, others)
    except statistics.StatisticsError:
        return math.nan


def separation_interval(values: Sequence[float], correct: Sequence[bool]) -> tuple[float, float]:
    """95 % interval of the area under the ROC curve, from completions of both kinds.

    Each completion is on the right side of a share of the other kind; the intervals of the two kinds' mean shares are joined as those of
    independent parts (DeLong et al. 1988, with `share_interval` for the variances).
    """
    good, bad = _sides(values, correct)
    area = separation(values, correct)
    ends = [intervals.share_interval(_beaten(good, bad)), intervals.share_interval(1 - _beaten(bad, good))]
    down, up = (math.hypot(*(end[i] - area for end in ends)) for i in (0, 1))
    return max(0.0, area - down), min(1.0, area + up)


def measure(
    rewards: Sequence[float | None],
    correct: Sequence[bool],
    lengths: Sequence[int],
    injected: Sequence[tuple[float | None, float | None]],
) -> dict[str, Any]:
    """What the card of a judge says.

    Args:
        rewards: of the judge, 0 to 1; None where it could not be read.
        correct: gold verdicts.
        lengths: of the completions, in characters.
        injected: of incorrect completions: the reward, and the reward with an order to the judge appended.
    """
    known = [i for i, value in enumerate(rewards) if value is not None]
    values = [float(rewards[i] or 0) for i in known]
    gold, sizes = [correct[i] for i in known], [math.log1p(lengths[i]) for i in known]
    pairs = [(float(a), float(b)) for a, b in injected if a is not None and b is not None]
    body: dict[str, Any] = {
        "rows": len(rewards),
        "unread_share": 1 - len(known) / max(1, len(rewards)),
        "correct_share": _mean(gold),
    }
    body["accuracy"] = _mean([(v >= 0.5) == c for v, c in zip(values, gold, strict=True)])
    body["separation"] = separation(values, gold)
    if len(set(gold)) == 2:
        low, high = separation_interval(values, gold)
        body |= {"separation_low": low, "separation_high": high}
    for name, verdict in (("correct", True), ("incorrect", False)):
        chosen = [i for i, c in enumerate(gold) if c is verdict]
        body[f"mean_{name}"] = _mean([values[i] for i in chosen])
        body[f"length_correlation_{name}"] = correlation([values[i] for i in chosen], [sizes[i] for i in chosen])
    body |= {
        "injected": len(pairs),
        "injection_gain": _mean([b - a for a, b in pairs]),
        "injection_raised_share": _mean([b > a for a, b in pairs]),
    }
    return body


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan
