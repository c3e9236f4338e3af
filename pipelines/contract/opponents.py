"""Who plays the other seats of a game while a policy is trained on it: itself, frozen models, and fixed players, drawn group by group."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.base.labels import numbered
from pipelines.contract.fields import Label, Line, Strict
from pipelines.contract.scorer import POLICY
from pipelines.contract.streams import seed_of

FIXED = {"random": "legal", "perfect": "best"}
"""Players that are no models, and the method of a game's `World` that they need: a list of messages, or the chance of each."""
PAST = "past"
"""The policy's own earlier weights, as a player."""
FIELD = "rlvr.rollout.opponents"


class Opponent(Strict):
    """An entry of a pool of opponents."""

    player: Line
    """`policy`, `past`, `random`, `perfect`, a stage that makes a model, or a model by its path."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """The chance to be drawn is its share of the weights."""
    name: Label | None = None
    """In metrics; default: the player's own."""
    every: Annotated[int, Field(ge=1)] | None = None
    """Of `past`: optimizer updates between two copies of the policy's weights; default 50. The first is that of the run's start."""
    copies: Annotated[int, Field(ge=1, le=64)] | None = None
    """Of `past`: how many, the newest ones, it may play with, each as likely as the others; default 4."""

    @property
    def is_past(self) -> bool:
        """Whether it is a copy of the policy's earlier weights."""
        return self.player == PAST

    @property
    def is_model(self) -> bool:
        """Whether it is a frozen model that is loaded."""
        return self.player not in (POLICY, PAST, *FIXED)

    @property
    def is_policy(self) -> bool:
        """Whether it is the policy, which then learns from every seat."""
        return self.player == POLICY


def pool_of(entries: Sequence[str | Opponent | dict[str, Any]]) -> list[Opponent]:
    """The opponents that a recipe lists, each with a name of its own.

    >>> [each.name for each in pool_of(["policy", {"player": "./runs/old", "weight": 2}, "./others/old"])]
    ['policy', 'old', 'old-2']

    Raises:
        RecipeError: two have one name or are earlier weights, none is anything but the policy, or a setting is another player's.
    """
    pool = [Opponent.model_validate({"player": each} if isinstance(each, str) else each) for each in entries]
    chosen = [each.name for each in pool if each.name is not None]
    own = [each.name or re.sub(r"[^\w.-]", "_", each.player.rstrip("/").rpartition("/")[2]) for each in pool]
    names = numbered(own)
    if len({*chosen}) < len(chosen) or len({*names}) < len(names):
        raise RecipeError(FIELD, "two opponents have one name", "Give each a `name` of its own.")
    if any((each.every or each.copies) and not each.is_past for each in pool) or sum(each.is_past for each in pool) > 1:
        raise RecipeError(
            FIELD,
            "every and copies are settings of one entry, the player past",
            "Leave them out elsewhere, and name past once.",
        )
    if all(each.is_policy for each in pool):
        raise RecipeError(
            FIELD, "the policy alone is what self-play is without opponents", "Add another one, or leave it out."
        )
    return [each.model_copy(update={"name": name}) for each, name in zip(pool, names, strict=True)]


def draw(pool: Sequence[Opponent], seats: int, key: Sequence[int | str], group: int) -> tuple[Opponent, int]:
    """The opponent of a group's games, and the place of the policy's seat among the game's seats in them.

    It depends on the arguments alone: whoever draws, and whatever was drawn before, it is the same.

    Args:
        seats: of the game.
        key: of the draw's RNG streams.
    """
    generator = random.Random(seed_of("opponent", *key, group))
    [opponent] = generator.choices(pool, [each.weight for each in pool])
    return opponent, generator.randrange(seats)


def fixed_move(world: Any, player: str, key: str) -> str:
    """A message of a fixed player who is to move; equal keys draw alike."""
    options = getattr(world, FIXED[player])()
    chances = options if isinstance(options, dict) else dict.fromkeys(options, 1.0)
    return random.Random(key).choices(list(chances), list(chances.values()))[0]
