"""A judge's grades of two answers against those that people gave: what a judge is trained on by RL (MENLO, arXiv 2509.26601).

    R = mean over both of (1 exact, `part` off by one, else 0) + `preference` * [the same answer is ahead, or the same tie]

The completion ends with the lines `First: N` and `Second: N`, as `judge` questions ask for; the answer is the JSON list of the two gold
grades. `info`: `low` and `high` (default 1 and 5), `part` (0.5), `preference` (0.5), `penalty` (-1) for a completion that cannot be
read. The weights are ours; the paper's summary gives none. Correct where both are exact.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any

from pipelines.verifiers.verdict import Verdict

_LINE = re.compile(r"[*_#> `-]{0,8}(first|second)[*_` ]{0,8}:[*_` ]{0,8}(-?\d{1,4})(?: ?/ ?\d{1,4})?[*_` .]{0,8}", re.I)
LONGEST = 100
"""Characters of a line that may hold a grade."""


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The reward of a judge.

    Raises:
        ValueError: the answer is no list of two grades, or a setting no number.
    """
    low, high = int(info.get("low", 1)), int(info.get("high", 5))
    part, preference, penalty = (
        float(info.get(name, default)) for name, default in (("part", 0.5), ("preference", 0.5), ("penalty", -1.0))
    )
    gold = json.loads(answer)
    if not isinstance(gold, list) or len(gold) != 2 or not all(type(g) is int and low <= g <= high for g in gold):
        raise ValueError("the answer is a list of two grades in the range")
    if not all(map(isfinite, (part, preference, penalty))):
        raise ValueError("part, preference and penalty are finite")
    grades = read(completion, low, high)
    if grades is None:
        return Verdict(penalty, "unparsable")
    near = [1.0 if g == t else part if abs(g - t) == 1 else 0.0 for g, t in zip(grades, gold, strict=True)]
    agrees = _sign(grades[0] - grades[1]) == _sign(gold[0] - gold[1])
    components = {"near": sum(near) / 2, "preference": float(agrees)}
    exact = list(grades) == gold
    return Verdict(sum(near) / 2 + preference * agrees, "correct" if exact else "incorrect", components)


def read(text: str, low: int, high: int) -> tuple[int, int] | None:
    """The two grades, each of the only lines that give it; None where one is missing, out of range, or given twice otherwise.

    >>> read("The first is clearer.\\n**First: 4**\\nSecond: 2/5", 1, 5), read("First: 9\\nSecond: 1", 1, 5)
    ((4, 2), None)
    """
    grades: dict[str, set[int]] = {"first": set(), "second": set()}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip()) if len(line) <= LONGEST else None
        if match:
            grades[match[1].lower()].add(int(match[2]))
    if any(len(values) != 1 for values in grades.values()):
        return None
    first, second = (next(iter(values)) for values in grades.values())
    return (first, second) if low <= min(first, second) and max(first, second) <= high else None


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def gold(answer: str, info: dict[str, Any]) -> str | None:
    """The two lines."""
    first, second = json.loads(answer)
    return f"First: {first}\nSecond: {second}"
