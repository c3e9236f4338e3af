"""The laws of verifiers: what a run relies on, whatever an answer holds."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any

from pipelines.laws import NotApplicable, require
from pipelines.verifiers import Verdict, load
from pipelines.verifiers._examples import examples_of

TEXTS = (
    "",
    " ",
    "0",
    "x" * 5000,
    "\x00\u200b\u202e",
    "<answer>",
    "</think>",
    "{}",
    "ä" * 50,
    "1/0",
    "\n".join("ab" * 40),
)
"""Answers of which no verifier knows anything."""
ANSWERS = ("", "0", "abba", "ä\n")


def _rows(name: str) -> list[tuple[str, dict[str, Any]]]:
    """(answer, info) pairs that the verifier takes: those of its examples, or general ones.

    Raises:
        NotApplicable: it takes none of these; a verifier may refuse a gold answer, but no completion.
    """
    verify = load(name).verify
    rows = [(each.answer, each.info) for each in examples_of(name)] or [(answer, {}) for answer in ANSWERS]
    taken: list[tuple[str, dict[str, Any]]] = []
    for (answer, info), text in itertools.product(rows, ("", None)):
        with contextlib.suppress(Exception):  # the row's fault, which a run reports before it begins
            verify(answer if text is None else text, answer, info)
            if (answer, info) not in taken:
                taken.append((answer, info))
    if not taken:
        raise NotApplicable("it refuses general answers; give its module EXAMPLES: (kind, completion, answer, info)")
    return taken


def any_text_gets_a_verdict(name: str) -> None:
    """Whatever a completion holds, it returns a `Verdict` whose score is finite, or None."""
    verify = load(name).verify
    for answer, info in _rows(name):
        for text in TEXTS:
            verdict = verify(text, answer, info)
            require(isinstance(verdict, Verdict), f"for {text[:20]!r} it returns {type(verdict).__name__}")
            require(
                verdict.score is None or math.isfinite(verdict.score), f"for {text[:20]!r} its score is {verdict.score}"
            )


def equal_answers_get_equal_verdicts(name: str) -> None:
    """Asked twice about one completion it says the same."""
    verify = load(name).verify
    for answer, info in _rows(name):
        for text in TEXTS:
            require(verify(text, answer, info) == verify(text, answer, info), f"for {text[:20]!r} it says two things")


def examples_are_judged_as_they_say(name: str) -> None:
    """Of its module's `EXAMPLES`, those of kind `gold` are correct and no others."""
    examples = examples_of(name)
    if not examples:
        raise NotApplicable("it brings no EXAMPLES")
    verify = load(name).verify
    for example in examples:
        verdict = verify(example.completion, example.answer, example.info)
        require(
            verdict.correct is (example.kind == "gold"),
            f"it calls the {example.kind} example {example.completion[:40]!r} {verdict.status}",
        )


LAWS: list[Callable[[str], None]] = [
    any_text_gets_a_verdict,
    equal_answers_get_equal_verdicts,
    examples_are_judged_as_they_say,
]
