"""A multiple-choice letter."""

from __future__ import annotations

import re
from typing import Any

from pipelines.verifiers import UNPARSABLE, Verdict, right_or_wrong

_SAID = re.compile(r"(?:answer\s*(?:is|:)?\s*|\\boxed\{|<answer>\s*)\(?([A-Z])\)?", re.I)
_ALONE = re.compile(r"(?<![A-Za-z])\(?([A-Z])\)?(?![A-Za-z])")


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The letter after "answer", in a box or in `<answer>`; else the last capital letter that stands alone.

    >>> verify("The answer is (B).", "B", {}).status, verify("I think C", "B", {}).status, verify("?", "B", {}).status
    ('right', 'wrong', 'unparsable')
    """
    found = _SAID.findall(completion) or _ALONE.findall(completion)
    if not found:
        return UNPARSABLE
    return right_or_wrong(found[-1].upper() == answer.strip().strip("()").upper())
