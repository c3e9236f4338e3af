"""A judge's verdicts on the criteria of a rubric against an expert's: what a judge is trained on by RL (RIFL, arXiv 2511.10507).

    R = share of the criteria on which the judge's verdict is the expert's

The completion has a line `N: yes` or `N: no` for each criterion, numbered from 1, as `judge` with `together` asks for them. The answer is
the JSON list of the expert's verdicts: true where the criterion is met. `info["strict"]`: 1 where all verdicts are the expert's, else 0
(ours). A completion that lacks a verdict, contradicts itself, or has one on a criterion that does not exist is unparsable and gets 0.
Correct where all agree. Components: `agreement`; `met`, `said_met` and `met_agreed` count the criteria that are met according to the
expert, to the judge, and to both, so that F1, which the paper reports, is 2 `met_agreed` / (`met` + `said_met`) of their means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pipelines.verifiers.verdict import UNPARSABLE, Verdict

_LINE = re.compile(r"[*_#> `-]{0,8}(?:criterion[*_` ]{1,8})?(\d{1,4})[*_` ]{0,8}:[*_` ]{0,8}(yes|no)[*_` .]{0,8}", re.I)
LONGEST = 100
"""Characters of a line that may hold a verdict."""


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The agreement of a judge with an expert.

    Raises:
        ValueError: the answer is no list of at least one true or false.

    >>> verify("1: yes\\n2: yes\\n3: no", "[true, false, false]", {}).components["agreement"]
    0.6666666666666666
    """
    expert = json.loads(answer)
    if not isinstance(expert, list) or not expert or not all(isinstance(met, bool) for met in expert):
        raise ValueError("the answer is a list of true and false, one for each criterion")
    told = read(completion, len(expert))
    if told is None:
        return UNPARSABLE
    agreement = sum(judge == met for judge, met in zip(told, expert, strict=True)) / len(expert)
    components = {
        "agreement": agreement,
        "met": float(sum(expert)),
        "said_met": float(sum(told)),
        "met_agreed": float(sum(judge and met for judge, met in zip(told, expert, strict=True))),
    }
    score = agreement if agreement == 1.0 or not info.get("strict") else 0.0
    return Verdict(score, "correct" if agreement == 1.0 else "incorrect", components)


def read(text: str, count: int) -> list[bool] | None:
    """The verdicts on criteria 1 to `count`; None where one is missing or given twice otherwise, or another criterion has one.

    >>> read("The first is clear.\\n**1: yes**\\nCriterion 2: No.", 2), read("1: yes", 2), read("1: yes\\n1: no", 1)
    ([True, False], None, None)
    """
    told: dict[int, set[bool]] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip()) if len(line) <= LONGEST else None
        if match:
            told.setdefault(int(match[1]), set()).add(match[2].lower() == "yes")
    if told.keys() != set(range(1, count + 1)) or any(len(values) != 1 for values in told.values()):
        return None
    return [next(iter(told[number])) for number in range(1, count + 1)]


def write(verdicts: Sequence[bool]) -> str:
    """The lines that `read` reads.

    >>> write([True, False])
    '1: yes\\n2: no'
    """
    return "\n".join(f"{number}: {'yes' if met else 'no'}" for number, met in enumerate(verdicts, 1))


def gold(answer: str, info: dict[str, Any]) -> str | None:
    """The expert's verdicts as lines."""
    return write(json.loads(answer))
