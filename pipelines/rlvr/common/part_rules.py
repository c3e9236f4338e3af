"""Rules that several parts have with the other parts of a recipe: each is the `check` of a card (`pipelines.contract.card`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.recipe.slots import bound_list, learning


def values_of_turns(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """For an advantage that reads one value a turn: the critic is fitted to turns, with the same discount and lambda.

    Raises:
        RecipeError: it is fitted to other values.
    """
    _fitted_to({"at": "turns", "discount": part.settings["discount"], "lam": part.settings["lam"]}, part, bound)


def values_of_tokens(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """For an advantage that reads a value of each token: the critic has the same discount; below 1 it is one of tokens, not of turns.

    Raises:
        RecipeError: it is fitted to other values.
    """
    discount = part.settings["discount"]
    _fitted_to({"discount": discount} | ({"at": "tokens"} if discount != 1 else {}), part, bound)


def _fitted_to(wanted: dict[str, Any], part: Bound, bound: Mapping[str, Any]) -> None:
    for each in bound["providers"]:
        fitted = each.fn.fitted_to
        different = {} if fitted is None else {name: value for name, value in wanted.items() if fitted[name] != value}
        if different:
            present = ", ".join(f"{name} {fitted[name]}" for name in different)
            fix = ", ".join(f"{name}: {value}" for name, value in different.items())
            raise RecipeError(
                "rlvr.providers",
                f"{each.name} is fitted to other values ({present}) than advantage: {part.name} reads",
                f"Set {fix} there, or change the advantage.",
            )


def several_steps(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """For a shaping part that pays a row of a single step nothing: the reward that makes the steps may make more than one.

    Raises:
        RecipeError: every answer is a single step.
    """
    parts = [each for slot in ("rollout", "reward") for each in (bound[slot], *bound[slot].fn.parts())]
    if any("turn" in each.card.makes and each.settings.get("most") == 1 for each in parts):
        raise RecipeError(
            "rlvr.reward.most",
            f"with 1 every answer is a single step, and shaping: {part.name} pays steps by what they are beside each other: it would pay "
            "nothing",
            "Raise most, or leave the shaping out.",
        )


def telescoping_turns(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """For a shaping part of turns that pays every row of a problem the same sum with `discount: 1`: something reads rewards of turns.

    Raises:
        RecipeError: the advantage compares the sums alone.
    """
    advantage = bound["advantage"]
    of_turns = any("turn_reward" in each.needs for each in learning(bound_list(bound)))
    if part.settings["discount"] == 1 and "group" in advantage.takes and not of_turns:
        raise RecipeError(
            "rlvr.shaping",
            f"with discount: 1 {part.name} gives every row of a problem the same in all, and advantage: {advantage.name} compares what "
            "rows get in all, so nothing would change",
            "Use an advantage that reads rewards of turns, such as gigpo, or leave it out.",
        )
