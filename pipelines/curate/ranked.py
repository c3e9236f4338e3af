"""Preferences out of ranked factors: the first factor that tells two completions apart decides (HERON, 2309.02632).

Checked with the released code by the sheet's example; its levels three and four take the margin of level two, ours their own.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from pipelines.base.errors import DataError

OF_ROWS = {
    "score": lambda row: row["score"],
    "correct": lambda row: float(row["correct"]),
    "length": lambda row: float(len(row["completion_ids"])),
    "brevity": lambda row: -float(len(row["completion_ids"])),
}
"""Factors that every completion has; any other name is one of its `components`."""


def value_of(row: dict[str, Any], name: str) -> float | None:
    """A completion's value of a factor, None where it has none."""
    if name in OF_ROWS:
        return OF_ROWS[name](row)
    value = json.loads(row["components"]).get(name)
    return None if value is None else float(value)


def with_values(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The completions that have a factor, each with its value as `rank`.

    Raises:
        DataError: none of them knows it; one that is null (a grade that could not be read) is known.
    """
    valued = [{**row, "rank": value} for row in rows if (value := value_of(row, name)) is not None]
    if rows and not valued and not any(name in json.loads(row["components"]) for row in rows):
        known = ", ".join(sorted({*OF_ROWS, *(key for row in rows for key in json.loads(row["components"]))}))
        raise DataError(
            "curate.sources.select", f"no completion of {rows[0]['uid']} has {name!r}", f"There are: {known}."
        )
    return valued


def preferences(factors: Sequence[Sequence[float]], margins: Sequence[float]) -> list[tuple[int, int]]:
    """(winner, loser) of every pair of completions that some factor decides.

    A factor decides where the values differ by more than its margin times its standard deviation (ddof 1) over the completions; the
    next one is asked otherwise.

    Args:
        factors: values [completions][factors], the most important factor first.
        margins: of each factor.

    >>> rows = [[1.0, 0.5, 0.2], [1.0, 0.9, 0.1], [0.0, 0.9, 0.9], [1.0, 0.55, 0.8]]
    >>> preferences(rows, [0.5, 0.5, 0.5])
    [(1, 0), (0, 2), (3, 0), (1, 2), (1, 3), (3, 2)]
    """
    if len(factors) < 2:
        return []
    limits = [m * statistics.stdev(column) for m, column in zip(margins, zip(*factors, strict=True), strict=True)]
    decided = []
    for i, j in combinations(range(len(factors)), 2):
        for first, second, limit in zip(factors[i], factors[j], limits, strict=True):
            if abs(first - second) > limit:
                decided.append((i, j) if first > second else (j, i))
                break
    return decided
