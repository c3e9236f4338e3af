"""Where something is in an image, or how many there are, by a metric that the row chooses in `info["metric"]`.

iou: a box [x1, y1, x2, y2], correct where its intersection over union with the answer reaches `info["threshold"]` (default 0.5); point:
[x, y] inside the answer, which is a box; count: a number within `info["tolerance"]` (default 0) of the answer. With `info["graded"]` the
score of a box is its IoU, and that of a count falls in a line to 0 at twice the answer, or at none; else scores are 1 and 0.

Answers are in pixels, or in whatever the rows use. With `info["scale"]`, such as 1 or 1000, completions are relative to the image: its
width and height, `info["size"]`, are `scale` of theirs. Boxes are read as models write them: a list in brackets, corners as two pairs,
JSON with `bbox_2d` or `point_2d`, `<point x="" y="">`. Where several boxes differ, none of them is the answer.
"""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from itertools import islice
from typing import Any

from pipelines.verifiers import number
from pipelines.verifiers._marked import marked, taken_back
from pipelines.verifiers.verdict import UNPARSABLE, Verdict, correct_or_incorrect

METRICS = ("iou", "point", "count")
MOST_CHARS = 20_000
"""A longer text, thoughts left out, gives no place."""
MOST_PLACES = 100
_N = r"[-+]?(?:\d{1,9}(?:\.\d{0,12})?|\.\d{1,12})"
_COMMA = r"\s{0,3},\s{0,3}"


def _list(count: int) -> str:
    return rf"[\[(]\s{{0,3}}({_N})" + rf"{_COMMA}({_N})" * (count - 1) + r"\s{0,3}[\])]"


_LISTS = {count: re.compile(_list(count)) for count in (2, 4)}
_CORNERS = re.compile(rf"{_list(2)}\s{{0,3}},?\s{{0,3}}{_list(2)}")
_TAG = re.compile(rf'<point\s{{1,3}}x="({_N})"\s{{1,3}}y="({_N})"')
_BARE = {count: re.compile(rf"\s*({_N})" + rf"{_COMMA}({_N})" * (count - 1) + r"\s*\.?\s*") for count in (2, 4)}
Place = tuple[float, ...]


def places(text: str, count: int) -> list[Place]:
    """The distinct places with so many coordinates that a text names, in order.

    >>> places('[{"bbox_2d": [1, 2, 3, 4], "label": "dog"}]', 4), places("(1,2),(3,4) or [5, 6, 7, 8]", 4)
    ([(1.0, 2.0, 3.0, 4.0)], [(1.0, 2.0, 3.0, 4.0), (5.0, 6.0, 7.0, 8.0)])
    >>> places("0.5, 0.25", 2), places("I see 3, 4 dogs", 2)
    ([(0.5, 0.25)], [])
    """
    patterns = [_LISTS[count], _CORNERS if count == 4 else _TAG]
    matches = [match for pattern in patterns for match in islice(pattern.finditer(text), MOST_PLACES)]
    if not matches and (bare := _BARE[count].fullmatch(text)) is not None:
        matches = [bare]
    matches.sort(key=lambda match: match.start())
    return list(dict.fromkeys(tuple(map(float, match.groups())) for match in matches))


def iou(expected: Place, predicted: Place) -> float:
    """Intersection over union of two boxes; 0 for one without area, or with its corners in the wrong order.

    >>> iou((0, 0, 2, 2), (1, 0, 3, 2)), iou((0, 0, 2, 2), (2, 2, 0, 0))
    (0.3333333333333333, 0.0)
    """
    if not _has_area(predicted):
        return 0.0
    width = min(expected[2], predicted[2]) - max(expected[0], predicted[0])
    height = min(expected[3], predicted[3]) - max(expected[1], predicted[1])
    both = max(0.0, width) * max(0.0, height)
    return both / (_area(expected) + _area(predicted) - both)


def _area(box: Place) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _has_area(box: Place) -> bool:
    return box[2] > box[0] and box[3] > box[1]


def inside(box: Place, point: Place) -> bool:
    """Whether a point is in a box, its edges included.

    >>> inside((0, 0, 2, 2), (2, 1)), inside((0, 0, 2, 2), (2.5, 1))
    (True, False)
    """
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The metric's verdict on what the completion marks, or on all of it.

    >>> box = "[10, 10, 20, 20]"
    >>> [verify(t, box, {"metric": "iou"}).status for t in ('{"bbox_2d": [10, 10, 20, 19]}', "[0, 0, 9, 9]", "there")]
    ['correct', 'incorrect', 'unparsable']
    >>> verify("(0.5, 0.5)", box, {"metric": "point", "scale": 1, "size": [30, 30]}).status
    'correct'

    Raises:
        ValueError: `info` or the answer is none that can be judged by.
    """
    metric = info.get("metric")
    if metric not in METRICS:
        raise ValueError(f"metric {str(metric)[:40]!r} is none of {', '.join(METRICS)}")
    if metric == "count":
        return _count_verdict(completion, answer, info)
    box, factors = _gold(answer), _factors(info)
    threshold = _number(info, "threshold", 0.5)
    if not 0 < threshold <= 1:
        raise ValueError("threshold is over 0 and at most 1")
    count = 4 if metric == "iou" else 2
    text = _answer(completion)
    written = places(text, count) if len(text) <= MOST_CHARS else []
    if not written:
        return UNPARSABLE
    if len(written) > 1:
        return correct_or_incorrect(False)
    place = tuple(value * factors[at % 2] for at, value in enumerate(written[0]))
    if metric == "point":
        return correct_or_incorrect(inside(box, place))
    overlap = iou(box, place)
    correct = overlap >= threshold - 1e-9
    score = overlap if info.get("graded") else float(correct)
    return Verdict(score, "correct" if correct else "incorrect", {"iou": overlap})


def gold(answer: str, info: dict[str, Any]) -> str:
    """The answer as a completion writes it: the box in the completion's units, a point in its middle, or the count."""
    if info.get("metric") == "count":
        return answer
    box, factors = _gold(answer), _factors(info)
    scaled = [value / factors[at % 2] for at, value in enumerate(box)]
    if info.get("metric") == "point":
        scaled = [(scaled[0] + scaled[2]) / 2, (scaled[1] + scaled[3]) / 2]
    return "[" + ", ".join(f"{value:.12f}".rstrip("0").rstrip(".") for value in scaled) + "]"


def extract_answer(completion: str) -> str:
    """The one box, else the one point, else the final number; empty where there is none, or several.

    >>> extract_answer("(1, 2), (3, 4)"), extract_answer("at [5.0, 6]"), extract_answer("#### 7"), extract_answer("[1, 2] or [3, 4]")
    ('[1, 2, 3, 4]', '[5, 6]', '7', '')
    """
    text = _answer(completion)
    for count in (4, 2) if len(text) <= MOST_CHARS else ():
        written = places(text, count)
        if written:
            return "[" + ", ".join(f"{value:g}" for value in written[0]) + "]" if len(written) == 1 else ""
    return number.extract_answer(completion)


def _count_verdict(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    expected = number.final_number(answer)
    tolerance = _number(info, "tolerance", 0.0)
    if expected is None or tolerance < 0:
        raise ValueError(f"the answer {answer[:80]!r} is no number, or the tolerance is negative")
    count = number.final_number(completion)
    if count is None:
        return UNPARSABLE
    away = abs(count - expected)
    correct = away <= Fraction(tolerance)
    if not info.get("graded"):
        return correct_or_incorrect(correct)
    score = 1 - float(min(away / max(abs(expected), Fraction(1)), Fraction(1)))  # a count may be too large for a float
    return Verdict(score, "correct" if correct else "incorrect")


def _answer(completion: str) -> str:
    inner = marked(completion)
    if inner is not None:
        return inner
    later = taken_back(completion)
    return later if later is not None and (places(later, 4) or places(later, 2)) else completion


def _gold(answer: str) -> Place:
    try:
        box = json.loads(answer)
    except (ValueError, RecursionError):
        box = None
    readable = isinstance(box, list) and len(box) == 4 and all(type(edge) in (int, float) for edge in box)
    if not readable or not all(math.isfinite(edge) for edge in box) or not _has_area(tuple(box)):
        raise ValueError(f"the answer {answer[:80]!r} is no box [x1, y1, x2, y2] with x1 < x2 and y1 < y2")
    return tuple(map(float, box))


def _factors(info: dict[str, Any]) -> tuple[float, float]:
    """What a completion's coordinates are multiplied with, across and down."""
    if info.get("scale") is None:
        return 1.0, 1.0
    scale, size = _number(info, "scale", 1.0), info.get("size")
    readable = isinstance(size, list | tuple) and len(size) == 2 and all(type(edge) in (int, float) for edge in size)
    if scale <= 0 or not readable or not all(math.isfinite(edge) and edge > 0 for edge in size or ()):
        raise ValueError("scale is over 0, and `size` is the image's width and height")
    return float(size[0]) / scale, float(size[1]) / scale  # type: ignore[index]


def _number(info: dict[str, Any], name: str, default: float) -> float:
    value = info.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is a number")
    return float(value)
