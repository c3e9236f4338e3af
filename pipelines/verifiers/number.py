"""The final number of a completion equals the answer."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

from pipelines.verifiers import UNPARSABLE, Verdict, correct_or_incorrect

_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|-?\.\d+")
_MARKED = (re.compile(r"####\s*(.+)"), re.compile(r"\\boxed\{([^{}]*)\}"), re.compile(r"<answer>(.*?)</answer>", re.S))


def final_number(text: str) -> Decimal | None:
    r"""The number after `####`, in `\boxed{}` or in `<answer>` where one of them is there, else the last number.

    >>> final_number("so 3 + 4 = 7. #### 1,007"), final_number(r"\boxed{-2.50} or 9"), final_number("none")
    (Decimal('1007'), Decimal('-2.50'), None)
    """
    for marked in _MARKED:
        found = marked.findall(text)
        if found:
            text = found[-1]
            break
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    try:
        return Decimal(numbers[-1].replace(",", ""))
    except InvalidOperation:
        return None


def extract_answer(completion: str) -> str:
    """The final number in its shortest form."""
    found = final_number(completion)
    return "" if found is None else f"{found.normalize():f}"


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """Compared as decimals: 7, 7.0 and 7.00 are equal.

    Raises:
        ValueError: the gold answer holds no number.
    """
    gold = final_number(answer)
    if gold is None:
        raise ValueError(f"the answer {answer!r} holds no number")
    found = final_number(completion)
    return UNPARSABLE if found is None else correct_or_incorrect(found == gold)
