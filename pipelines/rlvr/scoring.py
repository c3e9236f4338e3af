"""Completions to scores: the record's verifier, plus reward functions with TRL's signature."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pipelines import verifiers
from pipelines.data.records import UNSCORED, Problem, Stop, Trajectory
from pipelines.errors import RecipeError


def load_functions(names: list[str]) -> list[tuple[str, Callable[..., list[float | None]]]]:
    """Reward functions by `package.module:function`.

    Raises:
        RecipeError: one cannot be imported.
    """
    return [(name.partition(":")[2], load_function(name, "rlvr.reward_functions")) for name in names]


def load_function(name: str, field: str) -> Callable[..., Any]:
    """A function by `package.module:function`.

    Raises:
        RecipeError: it cannot be imported; the message names the field.
    """
    try:
        module, attribute = name.split(":")
        return getattr(importlib.import_module(module), attribute)
    except (ValueError, ImportError, AttributeError) as error:
        raise RecipeError(f"{field}: {name!r} cannot be imported ({error}). Write package.module:function.") from error


def verify(
    trajectories: list[Trajectory],
    problems: Mapping[str, Problem],
    *,
    on_timeout: Literal["incorrect", "unscored"] = "incorrect",
) -> None:
    """Fill score, correct, status and components of every trajectory by its problem's verifier, in place.

    A trajectory that failed for a reason of the infrastructure stays unscored. A row that has a score (an environment's)
    or a status already is kept as it is.

    Args:
        on_timeout: whether a completion that takes its verifier too long scores 0 or nothing.
    """
    rows = [t for t in trajectories if t.stop != Stop.ERROR and t.score is None and t.status == UNSCORED]
    questions = [(problems[t.uid], t.text) for t in rows]
    verdicts = verifiers.verify_many([(p.verifier, text, p.answer, p.info) for p, text in questions])
    for row, verdict in zip(rows, verdicts, strict=True):
        row.score, row.correct, row.status = verdict.score, verdict.correct, verdict.status
        if verdict.status == "timed_out" and on_timeout == "unscored":
            row.score = row.correct = None
        row.components = {"verifier": verdict.score or 0.0, **verdict.components}


def add(
    functions: list[tuple[str, Callable[..., list[float | None]]]],
    trajectories: list[Trajectory],
    problems: Mapping[str, Problem],
) -> None:
    """Add what reward functions give, in place.

    A function that returns None for a row adds nothing to it; a row without a score stays unscored.
    """
    for name, function in functions:
        _add(name, function, trajectories, problems)


def _add(
    name: str, function: Callable[..., Any], trajectories: list[Trajectory], problems: Mapping[str, Problem]
) -> None:
    scored = [t for t in trajectories if t.score is not None]
    if not scored:
        return
    columns: dict[str, list[Any]] = {
        "prompts": [problems[t.uid].prompt for t in scored],
        "completions": [[{"role": "assistant", "content": t.text}] for t in scored],
        "completion_ids": [[tok for tok, role in zip(t.tokens, t.role, strict=True) if role == 3] for t in scored],
        "answer": [problems[t.uid].answer for t in scored],
        "info": [problems[t.uid].info for t in scored],
    }
    values = function(**columns)
    if len(values) != len(scored):
        raise RecipeError(
            f"rlvr.reward_functions: {name} returned {len(values)} rewards for {len(scored)} completions."
        )
    for one, value in zip(scored, values, strict=True):
        if value is not None:
            one.components[name] = float(value)
            one.score = float(one.score or 0.0) + float(value)
