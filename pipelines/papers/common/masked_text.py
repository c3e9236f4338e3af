"""Texts of which parts are masked, and the prompts that they stand in."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from pipelines.data.records import Message, Problem

Unit = Literal["sentence", "word", "character"]
UNITS: dict[Unit, str] = {"sentence": r"[^.!?\n]+[.!?\n]*", "word": r"\S+", "character": r"\S"}


def masked(text: str, unit: Unit, covered: Callable[[], bool], mark: str) -> str:
    """A text with some of its units replaced; spaces between them stay.

    >>> masked("One. Two!", "sentence", iter([True, False]).__next__, "[...]")
    '[...] Two!'
    """

    def replace(match: re.Match[str]) -> str:
        words = match.group()
        kept = words[: len(words) - len(words.lstrip())]
        return kept + mark if words.strip() and covered() else words

    return re.sub(UNITS[unit], replace, text)


def context_of(problem: Problem, field: str) -> str | None:
    """The text in a field of the problem's info (dots lead into nested ones); None where no text of it stands in the prompt."""
    context: Any = problem.info
    for part in field.split("."):
        context = context.get(part) if isinstance(context, dict) else None
    if not isinstance(context, str) or not context or not any(context in m["content"] for m in problem.prompt):
        return None
    return context


def with_text(problem: Problem, text: str, other: str) -> list[Message]:
    """The problem's prompt with another text wherever the one stands."""
    return [message | {"content": message["content"].replace(text, other)} for message in problem.prompt]
