"""Completions to scores: the record's verifier, plus reward functions with TRL's signature."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pipelines import verifiers
from pipelines.base.errors import RecipeError
from pipelines.base.labels import numbered
from pipelines.base.user_functions import load_function, name_of
from pipelines.base.user_modules import raised_at
from pipelines.data.records import UNSCORED, Problem, Stop, Trajectory
from pipelines.rlvr import function_keywords

if TYPE_CHECKING:
    from pipelines.contract.method import Reward

RewardFunction = Callable[..., Any]
"""A function with TRL's signature; `function_keywords` says what it is called with."""


class FunctionTimeout(RecipeError):
    """A function took longer than it may."""


def load_functions(names: list[str]) -> list[tuple[str, RewardFunction]]:
    """(component, function) of reward functions; a component has its function's name, and a number from the second of that name on.

    Args:
        names: `FILE.py:NAME` or `package.module:NAME`.

    Raises:
        RecipeError: one cannot be imported.
    """
    functions = [load_function(name, f"rlvr.reward_functions.{number}") for number, name in enumerate(names)]
    return list(zip(numbered([name_of(name) for name in names]), functions, strict=True))


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


def score(reward: Reward, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
    """Have a reward score rows, in place. Where its score replaces the environment's, turns lose what the environment paid them.

    The rewards of a row's turns are then a part of its score, whose rest is paid for the whole answer.
    """
    before = [row.turn_reward for row in rows]
    reward.score(rows, problems)
    for row, paid in zip(rows, before, strict=True):
        replaced = row.turn_reward is paid and not (reward.keeps_score or reward.pays_turns)
        if paid is not None and replaced and row.score is not None:
            row.turn_reward = [0.0] * len(paid)
            row.turn_belief = None if row.turn_belief is None else [0.0] * len(paid)


def hidden_scores(name: str, rows: Sequence[Trajectory], problems: Mapping[str, Problem]) -> list[float | None]:
    """Each row's score by another verifier than its own; nothing of the row changes."""
    asked = [(name, row.text, problems[row.uid].answer, problems[row.uid].info) for row in rows]
    return [verdict.score for verdict in verifiers.verify_many(asked)]


def hidden_values(
    name: str,
    function: RewardFunction,
    rows: Sequence[Trajectory],
    problems: Mapping[str, Problem],
    timeout_s: float | None,
    *,
    field: str = "rlvr.monitors",
) -> list[float | None]:
    """Each row's value by a function that is no part of the reward; nothing of the row changes.

    Args:
        name: of the function, for messages.
        field: where the recipe names it, for messages.

    Raises:
        RecipeError: as `add`.
    """
    try:
        return values_of(name, function, list(rows), problems, timeout_s=timeout_s)
    except RecipeError as error:
        raise error.moved("rlvr.reward_functions", field) from None


def add(
    functions: list[tuple[str, RewardFunction]],
    trajectories: list[Trajectory],
    problems: Mapping[str, Problem],
    *,
    timeout_s: float | None = None,
) -> None:
    """Add what reward functions give, in place.

    A function gets copies, so it cannot change a problem. It returns (or, where it is a coroutine function, is awaited
    for) one finite number or None per row: a list, a tuple, a numpy array or a tensor. None adds nothing; a row without
    a score stays unscored.

    Args:
        timeout_s: wall time that one call may take.

    Raises:
        RecipeError: a function raises, hangs, or returns something else; names the function, the uid and the value.
    """
    for name, function in functions:
        rows = [t for t in trajectories if t.score is not None]
        if not rows:
            return
        values = values_of(name, function, rows, problems, timeout_s=timeout_s)
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row.components[name] = value
                row.score = float(row.score or 0.0) + value


def values_of(
    name: str,
    function: RewardFunction,
    rows: list[Trajectory],
    problems: Mapping[str, Problem],
    *,
    timeout_s: float | None = None,
) -> list[float | None]:
    """What a reward function gives each row, checked; [] without a call where there are no rows.

    Raises:
        RecipeError: as `add` does.
    """
    if not rows:
        return []
    called_with = function_keywords.keywords(name, function, rows, problems)
    return _checked(name, call(name, function, called_with, len(rows), timeout_s), rows)


def call(name: str, function: RewardFunction, columns: dict[str, Any], count: int, timeout_s: float | None) -> Any:
    """What the function returns; it runs in a thread of its own, because nothing else can be waited for with a limit."""
    returned: list[Any] = []
    raised: list[BaseException] = []

    def target() -> None:
        try:
            values = function(**columns)
            returned.append(asyncio.run(_awaited(values)) if inspect.isawaitable(values) else values)
        except BaseException as error:  # handed to the caller, SystemExit included
            raised.append(error)

    thread = threading.Thread(target=target, name=f"reward function {name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        frame = sys._current_frames().get(thread.ident or 0)
        where = f" It is at {frame.f_code.co_filename}:{frame.f_lineno}." if frame else ""
        raise FunctionTimeout(
            "rlvr.reward_functions",
            f"{name} did not return within {timeout_s:g} s for {count} completions.{where}",
            "Fix it or raise reward_timeout_s.",
        )
    if raised:
        error = raised[0]
        if isinstance(error, RecipeError):
            raise error
        raise RecipeError(
            "rlvr.reward_functions",
            f"{name} raised {type(error).__name__}: {error} ({raised_at(error, function)}).",
        ) from error
    return returned[0]


async def _awaited(values: Awaitable[Any]) -> Any:
    return await values


def _checked(name: str, values: Any, rows: list[Trajectory]) -> list[float | None]:
    if not isinstance(values, list | tuple):
        if not hasattr(values, "tolist"):
            raise RecipeError(
                "rlvr.reward_functions",
                f"{name} returned {type(values).__name__} instead of one number per completion; return a list, a tuple, an array or a "
                "tensor.",
            )
        values = values.tolist()
    if not isinstance(values, list | tuple) or len(values) != len(rows):
        count = len(values) if isinstance(values, list | tuple) else "a single number as"
        raise RecipeError("rlvr.reward_functions", f"{name} returned {count} rewards for {len(rows)} completions.")
    return [_number(name, value, row.uid) for value, row in zip(values, rows, strict=True)]


def _number(name: str, value: Any, uid: str) -> float | None:
    if value is None:
        return None
    if hasattr(value, "item") and not isinstance(value, str):
        with contextlib.suppress(ValueError, RuntimeError):  # an array of several numbers is refused below
            value = value.item()
    if isinstance(value, int | float):
        with contextlib.suppress(OverflowError):
            if math.isfinite(value):
                return float(value)
    shown_value = "an integer that no float holds" if isinstance(value, int) else f"{value!r:.80}"
    raise RecipeError(
        "rlvr.reward_functions",
        f"{name} gave {shown_value} to the problem {uid}; a reward is a finite number, or None to leave the row as it is.",
    )
