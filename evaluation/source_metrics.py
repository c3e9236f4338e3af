"""Metrics of single sources (`source/SOURCE/...`) that pages and comparisons show."""

from __future__ import annotations

TITLES = {"reward_mean": "reward", "correct": "share of answers correct"}
"""The end of a metric's name → what a page calls it."""


def of_source(metric: str) -> tuple[str, str] | None:
    """What a page calls such a metric, and the source; None of any other.

    >>> of_source("source/sums/correct"), of_source("source/sums/share")
    (('share of answers correct', 'sums'), None)
    """
    family, _, rest = metric.partition("/")
    source, _, last = rest.rpartition("/")
    return (TITLES[last], source) if family == "source" and last in TITLES else None
