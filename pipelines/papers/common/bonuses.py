"""Exploration bonuses side by side, turn by turn and of one scale: what `hire` fuses and `airs` chooses from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import bind, card, load
from pipelines.contract.method import Composed
from pipelines.rlvr.common.state_features import BEGUN, merged
from pipelines.rlvr.ops import SAME
from pipelines.rlvr.ops_turns import turns_taken

SLOT = "rlvr.shaping"
Normalisation = Literal["deviation", "range", "none"]


class Bonuses(Composed):
    """Several parts of this slot that pay for exploration, and the running moments of what they pay.

    Args:
        terms: parts whose card says `intrinsic`, with their settings; the `weight` of each, 1 by default, is its factor when it is
            normalised.
        normalise: `deviation` divides a bonus by its deviation over the run so far, this step included; `range` makes the step's
            smallest 0 and its largest 1.
        least: smallest deviation that is divided by.

    Raises:
        RecipeError: a term that is no such part.
    """

    def __init__(self, terms: Sequence[str | Mapping[str, Any]], *, normalise: Normalisation, least: float) -> None:
        self.terms = [_term(number, spec) for number, spec in enumerate(terms)]
        self.normalise, self.least = normalise, least
        self.moments = [list(BEGUN) for _ in terms]
        """Of each term: count, mean and variance of its bonuses."""

    def parts(self) -> list[Bound]:
        """The terms."""
        return self.terms

    def bonuses(self, columns: Mapping[str, Any]) -> Tensor:
        """What each term pays each turn, normalised and weighed, float64 [n, B, S]; 0 where no scored row took a turn.

        A term that pays rows counts for each of the row's turns. Every term sees the step, and the moments take it in.
        """
        earned = columns["turn_reward"]
        taken = turns_taken(columns["turn"], columns["mask"], earned.shape[1]) & columns["scored"][:, None]
        nothing = {"turn_reward": torch.zeros_like(earned), "reward": torch.zeros(len(earned))}
        paid = []
        for term, moments in zip(self.terms, self.moments, strict=True):
            result = term.fn(**{name: nothing.get(name, columns[name]) for name in term.takes}).double()
            per_turn = (result if term.card.shapes_turns else result[:, None]) / term.settings["weight"] * taken
            paid.append(term.settings["weight"] * self._normalised(per_turn, taken, moments))
        return torch.stack(paid)

    def _normalised(self, per_turn: Tensor, taken: Tensor, moments: list[float]) -> Tensor:
        values = per_turn[taken]
        if self.normalise == "none" or not len(values):
            return per_turn
        if self.normalise == "range":
            low, high = float(values.min()), float(values.max())
            return (per_turn - low) / (high - low) * taken if high - low > SAME else torch.zeros_like(per_turn)
        moments[:] = merged(moments, values)
        return per_turn / max(self.least, moments[2] ** 0.5)

    def state_dict(self) -> dict[str, Any]:
        """The moments, and what the terms remember."""
        return {"moments": [list(m) for m in self.moments], "terms": [term.fn.state_dict() for term in self.terms]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.moments = [list(m) for m in state["moments"]]
        for term, remembered in zip(self.terms, state["terms"], strict=True):
            term.fn.load_state_dict(remembered)


def _term(number: int, spec: str | Mapping[str, Any]) -> Bound:
    """A term of the list.

    Raises:
        RecipeError: names the field and the fix.
    """
    where = f"{SLOT}.terms.{number}"
    settings = {"kind": spec} if isinstance(spec, str) else dict(spec)
    if "kind" in settings and not card(load(SLOT, str(settings["kind"]), where)).intrinsic:
        raise RecipeError(
            where,
            f"{settings['kind']} is no bonus for exploration",
            "Name parts that are, such as novelty, rnd or e3b.",
        )
    return bind(SLOT, {"weight": 1.0} | settings, where)
