"""Constructions of open problems: what each must fulfil, and its value; nothing that a program returned is trusted.

`info["construction"]` names one, as `{"kind": "circle_packing", "circles": 26}`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from pipelines.base.errors import did_you_mean

TOLERANCE = 1e-9
"""By how much a coordinate or a distance may miss its bound, for rounding."""
MOST_CIRCLES, MOST_VECTORS, MOST_STEPS = 200, 600, 4000


@dataclass(frozen=True)
class Construction:
    """What a program is to construct."""

    value: Callable[[Any, dict[str, Any]], float | None]
    """(what the program returned, the settings) → its value; None where it breaks a rule."""
    smaller_is_better: bool = False


def circle_packing(rows: Any, settings: dict[str, Any]) -> float | None:
    """Sum of the radii of disjoint circles [x, y, radius] in the unit square; `circles` of them.

    >>> circle_packing([[0.25, 0.5, 0.25], [0.75, 0.5, 0.25]], {"circles": 2})
    0.5
    >>> circle_packing([[0.25, 0.5, 0.25], [0.7, 0.5, 0.25]], {"circles": 2}) is None
    True
    """
    count = _count(settings, "circles", MOST_CIRCLES)
    circles = _table(rows, count, 3)
    if circles is None:
        return None
    for x, y, radius in circles:
        if radius <= 0 or min(x, y) < radius - TOLERANCE or max(x, y) > 1 - radius + TOLERANCE:
            return None
    for (x, y, radius), (other_x, other_y, other_radius) in itertools.combinations(circles, 2):
        if math.hypot(x - other_x, y - other_y) < radius + other_radius - TOLERANCE:
            return None
    return sum(radius for _, _, radius in circles)


def cap_set(rows: Any, settings: dict[str, Any]) -> float | None:
    """Number of different vectors over {0, 1, 2} with `dimension` entries of which no three lie on a line (sum to 0 modulo 3).

    >>> cap_set([[0, 0], [0, 1], [1, 0], [1, 1]], {"dimension": 2}), cap_set([[0], [1], [2]], {"dimension": 1})
    (4.0, None)
    """
    dimension = _count(settings, "dimension", 10)
    vectors = _table(rows, None, dimension)
    if not vectors or len(vectors) > MOST_VECTORS or any(entry not in (0, 1, 2) for row in vectors for entry in row):
        return None
    points = {tuple(int(entry) for entry in row) for row in vectors}
    if len(points) < len(vectors):
        return None
    for first, second in itertools.combinations(points, 2):
        if tuple(-(a + b) % 3 for a, b in zip(first, second, strict=True)) in points:
            return None
    return float(len(points))


def autocorrelation(rows: Any, settings: dict[str, Any]) -> float | None:
    """2 n max(a * a) / (sum a)^2 of steps a >= 0: an upper bound in the first autocorrelation inequality; smaller is better.

    >>> autocorrelation([1, 1], {}), autocorrelation([1, -1], {})
    (2.0, None)
    """
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_STEPS or not all(map(_is_number, rows)):
        return None
    steps = numpy.array(rows, dtype=float)
    total = float(steps.sum())
    if (steps < 0).any() or not math.isfinite(total) or total <= 0:
        return None
    value = 2 * len(rows) * float(numpy.convolve(steps / total, steps / total).max())
    return value if math.isfinite(value) else None


CONSTRUCTIONS = {
    "autocorrelation": Construction(autocorrelation, smaller_is_better=True),
    "cap_set": Construction(cap_set),
    "circle_packing": Construction(circle_packing),
}


def construction(info: dict[str, Any]) -> tuple[Construction, dict[str, Any]]:
    """What a row asks for, and its settings.

    Raises:
        ValueError: it names none, or one that nobody knows.
    """
    settings = info.get("construction")
    if not isinstance(settings, dict) or settings.get("kind") not in CONSTRUCTIONS:
        kind = settings.get("kind") if isinstance(settings, dict) else settings
        raise ValueError(f"no construction {kind!r}. {did_you_mean(str(kind), CONSTRUCTIONS)}")
    return CONSTRUCTIONS[settings["kind"]], settings


def _table(rows: Any, count: int | None, width: int) -> list[Sequence[float]] | None:
    """Rows of so many numbers; None where it is none, or has another number of rows than `count`."""
    if not isinstance(rows, list) or (count is not None and len(rows) != count):
        return None
    if not all(isinstance(row, list) and len(row) == width and all(map(_is_number, row)) for row in rows):
        return None
    return rows


def _is_number(value: Any) -> bool:
    """Finite, and small enough that nothing overflows."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e100


def _count(settings: dict[str, Any], name: str, most: int) -> int:
    count = settings.get(name)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
        raise ValueError(f"construction.{name} is a whole number from 1 to {most}")
    return count
