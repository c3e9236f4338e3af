"""Rewards of turns that are worked out when an episode is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.data.records import Problem, Trajectory
from pipelines.errors import RecipeError
from pipelines.rlvr.scoring import verify


def scored_with_turns(name: str, rows: list[Trajectory], problems: Mapping[str, Problem]) -> list[Trajectory]:
    """The rows that have a score, after their verifiers.

    Raises:
        RecipeError: a row has no turns.
    """
    verify(rows, problems)
    for row in rows:
        if row.turn_reward is None:
            raise RecipeError(
                f"rlvr.reward: {name} pays turns, and the rollout has none. Use a rollout with turns: rollout: multi_turn."
            )
    return [row for row in rows if row.score is not None]


def calls_of(row: Trajectory) -> list[list[dict[str, Any]]]:
    """The tool calls of each turn."""
    return row.turn_calls if row.turn_calls is not None else [[] for _ in row.turn_reward or ()]


def add_to_turns(row: Trajectory, name: str, values: Sequence[float]) -> None:
    """Add a named part to the reward of each turn, and so to the score."""
    row.turn_reward = [reward + value for reward, value in zip(row.turn_reward or [], values, strict=True)]
    parts = row.turn_components or [{} for _ in values]
    row.turn_components = [{**part, name: value} for part, value in zip(parts, values, strict=True)]
    row.score = (row.score or 0.0) + sum(values)
    row.components = {**row.components, f"turn.{name}": float(sum(values))}


def pay_turns(row: Trajectory, name: str, values: Sequence[float]) -> None:
    """Pay the turns these values and nothing else; what the environment paid is the component `outcome`."""
    row.components = {**row.components, "outcome": sum(row.turn_reward or []), f"turn.{name}": float(sum(values))}
    row.turn_reward = list(values)
    row.turn_components = [{name: value} for value in values]
    row.score = float(sum(values))
