"""Steps of an answer: where they end in its tokens, and those with labels that a record holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.base.errors import DataError
from pipelines.data.records import Message, Problem
from pipelines.data.steps import CUT, LABELS, STEPS, is_label


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """An answer in steps, and what is known of each."""

    uid: str
    prompt: list[Message]
    steps: tuple[str, ...]
    labels: tuple[float | None, ...]
    cut: bool = False

    def ends(self, separator: str) -> tuple[str, list[int]]:
        """The answer's text, and how many of its characters each step ends with.

        Args:
            separator: goes between two steps of which the first does not end with it.

        >>> StepAnswer("u", [], ("a", "b;", "c"), (1.0, 1.0, 0.0)).ends(";")
        ('a;b;c', [2, 4, 5])
        """
        text, ends = "", []
        for number, step in enumerate(self.steps, 1):
            text += step if number == len(self.steps) or step.endswith(separator) else step + separator
            ends.append(len(text))
        return text, ends


def steps_of(problem: Problem) -> StepAnswer:
    """The labelled steps that a record holds, without white space around the whole answer.

    Raises:
        DataError: it holds none, or a label is no number from 0 to 1.
    """
    steps, labels = problem.info.get(STEPS), problem.info.get(LABELS)
    named = f"record {problem.uid} ({problem.source})"
    if not isinstance(steps, list) or not _texts(steps) or not isinstance(labels, list) or len(labels) != len(steps):
        raise DataError(
            f"{named} holds no labelled steps (info.{STEPS}, texts, and info.{LABELS}, as many numbers)",
            fix=(
                "Curate them: sources: [{kind: stage, path: SAMPLES, select: steps}] of a sample stage with `steps`, or a file with the "
                "columns prompt, completions and labels."
            ),
        )
    for label in labels:
        if label is not None and not is_label(label):
            raise DataError(
                named, f"info.{LABELS} holds {label!r:.60}", "A label is from 0 to 1, or null where there is none."
            )
    first, *_ = steps
    trimmed = [first.lstrip(), *steps[1:]]
    trimmed[-1] = trimmed[-1].rstrip()
    return StepAnswer(
        problem.uid,
        problem.prompt,
        tuple(trimmed),
        tuple(None if label is None else float(label) for label in labels),
        bool(problem.info.get(CUT)),
    )


def _texts(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(each, str) and each.strip() for each in values)


def step_ends(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str], separator: str, *, most: int, shortest: int = 1
) -> tuple[list[int], list[str]]:
    """Index of the last token of each step but the last one, and the text up to the end of every step.

    A step ends with the token that completes the separator. One without text, or of fewer than `shortest` tokens, belongs to the next,
    at the end of the answer to the one before; steps beyond `most` belong to the last.

    >>> step_ends([65, 59, 66, 67], lambda ids: bytes(ids).decode(), ";", most=9)
    ([1], ['A;', 'A;BC'])
    """
    text = decode(tokens)
    ends: list[int] = []
    texts: list[str] = []
    begin, place = 0, text.find(separator)
    while place >= 0 and len(ends) < most - 1:
        end = place + len(separator)
        last = token_at(end, text, tokens, decode)
        long_enough = last - (ends[-1] if ends else -1) >= shortest
        if text[begin:place].strip() and text[end:].strip() and long_enough:
            ends.append(last)
            texts.append(text[:end])
            begin = end
        place = text.find(separator, end)
    if ends and len(tokens) - 1 - ends[-1] < shortest:
        del ends[-1], texts[-1]
    return ends, [*texts, text]


def token_at(end: int, text: str, tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Index of the token with which the first `end` characters of the text are complete.

    Tokens are never cut from a text again: a character of several tokens is complete with the last of them, as `decode` says.

    Args:
        end: from 1 to the length of the text.
        text: `decode(tokens)`.
        decode: token ids → text; what it makes of more tokens begins with what it makes of fewer, but for characters that are not
            complete yet.
    """
    low, high = 0, len(tokens) - 1
    while low < high:
        middle = (low + high) // 2
        if decode(tokens[: middle + 1]).startswith(text[:end]):
            high = middle
        else:
            low = middle + 1
    return low
