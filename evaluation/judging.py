"""How far a judge can be believed: agreement with gold verdicts, what it makes of length, and whether a text can order it about."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy

RESAMPLES = 1000


def separation(values: Sequence[float], correct: Sequence[bool]) -> float:
    """Area under the ROC curve: how often a correct completion gets more than an incorrect one, ties as half; NaN without both.

    >>> separation([0.9, 0.4, 0.4, 0.1], [True, True, False, False])
    0.875
    """
    good = numpy.array([v for v, c in zip(values, correct, strict=True) if c])
    bad = numpy.sort([v for v, c in zip(values, correct, strict=True) if not c])
    if not len(good) or not len(bad):
        return math.nan
    below, up_to = numpy.searchsorted(bad, good, "left"), numpy.searchsorted(bad, good, "right")
    return float((below + up_to).sum() / 2 / len(good) / len(bad))


def correlation(values: Sequence[float], others: Sequence[float]) -> float:
    """Pearson's, or NaN where one of them does not vary.

    >>> round(correlation([1, 2, 3], [2, 4, 7]), 3)
    0.993
    """
    try:
        return statistics.correlation(values, others)
    except statistics.StatisticsError:
        return math.nan


def interval(statistic: Any, rows: int, seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap over rows.

    Args:
        statistic: indices → value; NaN is left out.
    """
    draw = numpy.random.default_rng(seed)
    values = [statistic(draw.integers(rows, size=rows)) for _ in range(RESAMPLES)]
    finite = [v for v in values if not math.isnan(v)]
    return (
        (float(numpy.quantile(finite, 0.025)), float(numpy.quantile(finite, 0.975))) if finite else (math.nan, math.nan)
    )


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
    if known:
        low, high = interval(lambda at: separation([values[i] for i in at], [gold[i] for i in at]), len(known))
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
