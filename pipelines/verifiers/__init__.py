"""Text to score. A verifier is `verify(completion, answer, info) -> Verdict`; it never raises on bad completions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pipelines.errors import DataError, did_you_mean

Status = Literal["correct", "incorrect", "unparsable", "timed_out", "verifier_failed"]
VERIFIERS = ("choice", "exact", "math", "number", "reasoning_gym")
"""Every verifier: a module of this package that defines `verify`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier found.

    `score` is None only where the verifier itself failed: such a rollout is unscored, not incorrect.
    """

    score: float | None
    status: Status
    components: dict[str, float] = field(default_factory=dict)

    @property
    def correct(self) -> bool | None:
        """True where correct, None where unscored."""
        return None if self.score is None else self.status == "correct"


def correct_or_incorrect(ok: bool) -> Verdict:
    """1 or 0."""
    return Verdict(1.0, "correct") if ok else Verdict(0.0, "incorrect")


UNPARSABLE = Verdict(0.0, "unparsable")


@cache
def load(name: str) -> Callable[[str, str, dict[str, Any]], Verdict]:
    """The verifier of that name.

    Raises:
        DataError: there is none.
    """
    if name not in VERIFIERS:
        raise DataError(f"unknown verifier {name!r}. {did_you_mean(name, VERIFIERS)}")
    return importlib.import_module(f"pipelines.verifiers.{name}").verify


def extract_answer(name: str, completion: str) -> str:
    """The answer in a completion in a form that equal answers share; empty where there is none.

    >>> extract_answer("number", "so 7. #### 1,007.0"), extract_answer("choice", "The answer is (b)"), extract_answer("exact", " ab  c ")
    ('1007', 'B', 'ab c')
    """
    load(name)
    module = importlib.import_module(f"pipelines.verifiers.{name}")
    if hasattr(module, "extract_answer"):
        return module.extract_answer(completion)
    if "<answer>" in completion:
        completion = completion.rsplit("<answer>", 1)[1].split("</answer>", 1)[0]
    return " ".join(completion.split())


def verify(name: str, completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """Score one completion; a verifier that raises gives an unscored verdict, never an incorrect one."""
    check = load(name)
    try:
        return check(completion, answer, info)
    except Exception as error:
        return Verdict(None, "verifier_failed", {f"error/{type(error).__name__}": 1.0})
