"""A multiple-choice letter."""

from __future__ import annotations

import re
from typing import Any

from pipelines.verifiers import UNPARSABLE, Verdict, correct_or_incorrect

_SAID = re.compile(r"(?:answer\s*(?:is|:)?\s*|\\boxed\{|<answer>\s*)\(?([A-Z])\)?", re.I)
_ALONE = re.compile(r"(?<![A-Za-z])\(?([A-Z])\)?(?![A-Za-z])")


def extract_answer(completion: str) -> str:
    """The letter."""
    found = _SAID.findall(completion) or _ALONE.findall(completion)
    return found[-1].upper() if found else ""


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The letter after "answer", in a box or in `<answer>`; else the last capital letter that stands alone.

    >>> verify("The answer is (B).", "B", {}).status, verify("I think C", "B", {}).status, verify("?", "B", {}).status
    ('correct', 'incorrect', 'unparsable')
    """
    letter = extract_answer(completion)
    if not letter:
        return UNPARSABLE
    return correct_or_incorrect(letter == answer.strip().strip("()").upper())
