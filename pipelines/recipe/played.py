"""The settings of a benchmark that is played: episodes in an environment."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from pipelines.contract.compact import Compact
from pipelines.contract.fields import PartName, Seed, Settings


class PlayedTask(Settings):
    """Episodes in an environment; the success rate is avg@k."""

    task: PartName
    """An environment's name."""
    size: int = Field(100, ge=1, le=10_000_000)
    """Problems."""
    seed: Seed = 10_000
    """Of the problems; another one than the training data's."""
    config: dict[str, Any] = {}
    max_turns: int = Field(10, ge=1, le=100_000)
    remind: bool = False
    """Say in every observation how many turns are left."""
    extensions: int = Field(0, ge=0, le=100_000)
    """How often an episode that is at its limit may continue."""
    extension: int = Field(1, ge=1, le=100_000)
    """Turns that it then gets."""
    max_tokens: int = Field(16, ge=1)
    """Per turn."""
    temperature: float = Field(1.0, ge=0, le=100)
    asynchronous: bool = False
    """An episode's turn does not wait for those of others, as in `rollout: multi_turn`."""
    max_concurrent: int | None = Field(None, ge=1, le=10_000)
    """Episodes under way at once, where each has a program or a server of its own; in lockstep not fewer than a problem's. Default:
    `batch_size` of the stage."""
    compact: Compact | None = None
    """How an episode's context is summarised, as in `rollout: multi_turn`."""


def check_unread_fields(played: PlayedTask, task: Any) -> None:
    """What else an evaluation's task says has a meaning for episodes.

    Raises:
        ValueError: a field that episodes do not read.
    """
    if task.benchmark:
        raise ValueError(f"{task.name}: episodes of an environment have no `benchmark`")
    if task.prefill and played.max_turns > 1:
        raise ValueError(f"{task.name}.prefill: episodes of several turns have none. Leave it out, or set max_turns: 1")
    for name in ("few_shot", "sampling", "chat", "data", "start_date", "end_date"):
        if getattr(task, name) not in (None, {}):
            raise ValueError(
                f"{task.name}.{name}: episodes of an environment do not read it; `environment` has their max_tokens, temperature "
                "and max_turns"
            )
