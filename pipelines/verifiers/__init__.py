"""Text to score. A verifier is `verify(completion, answer, info) -> Verdict`; it never raises on bad completions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pipelines.errors import DataError, did_you_mean

Status = Literal["right", "wrong", "unparsable", "timed_out", "verifier_failed"]
VERIFIERS = ("choice", "exact", "math", "number", "reasoning_gym")
"""Every verifier: a module of this package that defines `verify`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier found.

    `score` is None only where the verifier itself failed: such a rollout is unscored, not wrong.
    """

    score: float | None
    status: Status
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def correct(self) -> bool | None:
        """True where right, None where unscored."""
        return None if self.score is None else self.status == "right"


def right_or_wrong(ok: bool) -> Verdict:
    """1 or 0."""
    return Verdict(1.0, "right") if ok else Verdict(0.0, "wrong")


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


def said(name: str, completion: str) -> str:
    """The answer in a completion in a form that equal answers share; empty where there is none.

    >>> said("number", "so 7. #### 1,007.0"), said("choice", "The answer is (b)"), said("exact", " ab  c ")
    ('1007', 'B', 'ab c')
    """
    load(name)
    module = importlib.import_module(f"pipelines.verifiers.{name}")
    if hasattr(module, "said"):
        return module.said(completion)
    if "<answer>" in completion:
        completion = completion.rsplit("<answer>", 1)[1].split("</answer>", 1)[0]
    return " ".join(completion.split())


def verify(name: str, completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """Score one completion; a verifier that raises gives an unscored verdict, never a wrong one."""
    check = load(name)
    try:
        return check(completion, answer, info)
    except Exception as error:
        return Verdict(None, "verifier_failed", {f"error/{type(error).__name__}": 1.0})
