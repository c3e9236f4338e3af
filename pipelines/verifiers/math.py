"""Mathematical equality through math-verify: fractions, sets, intervals, units of LaTeX."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from pipelines.verifiers import UNPARSABLE, Verdict, correct_or_incorrect

for _name in ("parser", "grader"):  # warns that the limits are off, which they are on purpose
    logging.getLogger(f"math_verify.{_name}").setLevel(logging.CRITICAL)


@lru_cache(maxsize=4096)
def _gold(answer: str) -> list[Any]:
    from math_verify import parse

    wrapped = answer if "$" in answer or "\\boxed" in answer else f"${answer}$"
    parsed = parse(wrapped, parsing_timeout=None) or parse(answer, parsing_timeout=None)
    if not parsed:
        raise ValueError(f"the answer {answer!r} is not a mathematical expression")
    return parsed


def extract_answer(completion: str) -> str:
    """The last boxed or final expression, as the parser writes it."""
    from math_verify import parse

    found = parse(completion[-4000:], parsing_timeout=None)
    return str(found[0]) if found else ""


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The last boxed or final expression of the completion equals the answer.

    The library's own time limits use signals, which work in a main thread only, so they are off; the
    length of what is parsed is bounded instead.

    Raises:
        ValueError: the gold answer cannot be parsed.
    """
    from math_verify import parse
    from math_verify import verify as equal

    gold = _gold(answer)
    found = parse(completion[-4000:], parsing_timeout=None)
    if not found:
        return UNPARSABLE
    return correct_or_incorrect(bool(equal(gold, found, timeout_seconds=None)))


def known(completion: str, answer: str, info: dict[str, Any]) -> Verdict | None:
    """Verdicts that need no parser."""
    return None


def warm(detail: str) -> None:
    """Import the parser and build its patterns."""
    verify("$1$", "1", {})
