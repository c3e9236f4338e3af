"""Rewards of turns that are worked out when an episode is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.contract.lent_models import RewardModel
from pipelines.contract.scorer import Scorer
from pipelines.data.records import Problem, Role, Trajectory
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
                "rlvr.reward",
                f"{name} pays turns, and the rollout has none",
                "Use a rollout with turns: rollout: multi_turn.",
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
    row.turn_belief = None if row.turn_belief is None else [0.0] * len(values)
    row.turn_components = [{name: value} for value in values]
    row.score = float(sum(values))


def check_reads(member: RewardModel, scorer: Scorer, field: str, path: str) -> None:
    """A reward model that scores turns reads the policy's own tokens.

    Raises:
        RecipeError: it cannot.
    """
    if not member.reads(scorer.tokenizer()):
        raise RecipeError(
            field,
            f"the reward model {path} has another tokenizer or chat template than the policy, so the policy's tokens are not its own",
            "Train it from a model of the same family.",
        )


def pay_scored_turns(
    name: str,
    rows: list[Trajectory],
    problems: Mapping[str, Problem],
    values_of: Callable[[list[list[int]], list[int]], list[float]],
) -> None:
    """Pay each turn what a model thinks of the conversation up to its end, and nothing else; the row the sum.

    A row with a turn of no value is unscored.

    Args:
        name: of the component.
        values_of: token ids of conversations, and index of the last token of each → a value each, NaN where there is none.

    Raises:
        RecipeError: a row has no turns.
    """
    scored = scored_with_turns(name, rows, problems)
    ends = [turn_ends(row) for row in scored]
    passages = [row.tokens[: end + 1] for row, own in zip(scored, ends, strict=True) for end in own]
    if not passages:
        return
    values = iter(values_of(passages, [end for own in ends for end in own]))
    for row, own in zip(scored, ends, strict=True):
        paid = [next(values) for _ in own]
        if any(value != value for value in paid):
            row.score = None
            continue
        pay_turns(row, name, paid)


def turn_ends(row: Trajectory) -> list[int]:
    """Index of the last token of each turn: of the policy's, or of a relabelled episode's (`rollout: hindsight`).

    Raises:
        ValueError: a turn has none.
    """
    assert row.turn is not None and row.turn_reward is not None
    places: list[int] = [-1] * len(row.turn_reward)
    for index, (turn, role) in enumerate(zip(row.turn, row.role, strict=True)):
        if role in (Role.POLICY, Role.TEACHER_FORCED):
            places[turn] = index
    if -1 in places:
        raise ValueError(f"turn {places.index(-1)} of {row.uid} has no token")
    return places
