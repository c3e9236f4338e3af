"""What a reward function is called with: TRL's keywords, as far as its signature takes them."""

from __future__ import annotations

import copy
import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.data.records import Problem, Trajectory

ARGUMENTS = ("prompts", "completions", "completion_ids", "answer", "info")
RECORD = ("uid", "source", "verifier")
LIVE = ("trainer_state", "log_extra", "log_metric")
"""Keywords that are no column."""
MOST_CHARS = 2000
"""Of a value that `log_extra` writes."""


@dataclass
class Session:
    """The step that reward functions are called in, and what they logged."""

    step: int = 0
    """Steps that are finished."""
    steps: int = 0
    """Of the whole run."""
    metrics: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


_session: ContextVar[Session | None] = ContextVar("reward function session", default=None)


@contextmanager
def session(current: Session) -> Iterator[Session]:
    """Reward functions that are called inside see this step, and log to it."""
    token = _session.set(current)
    try:
        yield current
    finally:
        _session.reset(token)


def keywords(
    name: str, function: Callable[..., Any], rows: list[Trajectory], problems: Mapping[str, Problem]
) -> dict[str, Any]:
    """TRL's keywords for a call with these rows, all of them where the function takes any.

    `prompts`, `completions`, `completion_ids`; every column of the records: `answer`, `info`, `uid`, `source`, `verifier`, and the
    entries of `info` by their names (None where a record has none; a name that is taken stays what it is); `trainer_state`,
    `log_extra(column, values)`, `log_metric(name, value)`. What is handed over is a copy.
    """
    asked = [row.asked(problems) for row in rows]
    current = _session.get() or Session()
    values: dict[str, Any] = {key: None for problem in asked for key in problem.info}
    values |= dict.fromkeys((*ARGUMENTS, *RECORD, *LIVE))
    taken = accepted(function, values)
    makers: dict[str, Callable[[], Any]] = {
        "prompts": lambda: [copy.deepcopy(p.prompt) for p in asked],
        "completions": lambda: [[{"role": "assistant", "content": row.text}] for row in rows],
        "completion_ids": lambda: [row.sampled() for row in rows],
        "answer": lambda: [p.answer for p in asked],
        "info": lambda: [copy.deepcopy(p.info) for p in asked],
        "uid": lambda: [p.uid for p in asked],
        "source": lambda: [p.source for p in asked],
        "verifier": lambda: [p.verifier for p in asked],
        "trainer_state": lambda: _trainer_state(current),
        "log_extra": lambda: _log_extra(name, rows),
        "log_metric": lambda: _log_metric(name, current),
    }
    return {key: makers[key]() if key in makers else [copy.deepcopy(p.info.get(key)) for p in asked] for key in taken}


def accepted(function: Callable[..., Any], names: Mapping[str, Any]) -> list[str]:
    """Which of the names a function takes as keywords; all of them where it takes any, or cannot be asked."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return list(names)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return list(names)
    return [p.name for p in parameters if p.name in names and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _trainer_state(current: Session) -> Any:
    """A real `transformers.TrainerState` with `global_step` and `max_steps`."""
    from transformers import TrainerState

    epoch = current.step / current.steps if current.steps else 0.0
    return TrainerState(epoch=epoch, global_step=current.step, max_steps=current.steps)


def _log_extra(name: str, rows: list[Trajectory]) -> Callable[[str, list[Any]], None]:
    def log_extra(column: str, values: list[Any]) -> None:
        plain = values.tolist() if hasattr(values, "tolist") else list(values)
        if len(plain) != len(rows):
            raise RecipeError(
                "rlvr.reward_functions", f"{name} logged {len(plain)} values as {column} for {len(rows)} completions."
            )
        for row, value in zip(rows, plain, strict=True):
            row.logged[str(column)] = _plain(value)

    return log_extra


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)[:MOST_CHARS]


def _log_metric(name: str, current: Session) -> Callable[[str, float], None]:
    def log_metric(metric: str, value: float) -> None:
        number = float(value)
        if not math.isfinite(number):
            raise RecipeError("rlvr.reward_functions", f"{name} logged {number} as the metric {metric}.")
        current.metrics[str(metric)].append(number)

    return log_metric
