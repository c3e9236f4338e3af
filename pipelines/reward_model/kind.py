"""Learning a reward model as a kind of stage."""

from __future__ import annotations

from typing import ClassVar

from pipelines.contract.catalogue import Bound, bind
from pipelines.errors import RecipeError
from pipelines.recipe.check_monitors import check_monitors
from pipelines.recipe.graph import Node
from pipelines.recipe.resolve import resolve
from pipelines.recipe.stage_kind import (
    DATA,
    MODEL,
    REWARD_MODEL,
    TEXT,
    TORCH,
    Kind,
    Port,
    Reads,
    base_files,
    check_split,
    check_trained,
    model_settings,
)
from pipelines.reward_model.settings import RewardModel

LOSS = "reward_model.loss"
LENGTH_HEAD = "chosen_length_reward"
"""A loss that reads this column has a second head, which only training uses."""


class RewardModelKind(Kind):
    """A model that scores answers, trained on pairs of them."""

    name, settings, module, makes = "reward_model", RewardModel, "pipelines.reward_model", REWARD_MODEL
    slots = (LOSS,)
    ports: ClassVar[dict[str, Port]] = {"data": Port((DATA,)), "model": Port((MODEL,), required=False)}
    trains = True
    slots = (LOSS,)
    headlines = ("accuracy/heldout", "loss/heldout", "loss/train")

    def reads(self, node: Node) -> Reads:
        """The loss, and the model that it starts from."""
        model, in_key = model_settings(node)
        settings: RewardModel = node.settings
        return Reads(
            {"reward_model": resolve(settings), "model": model},
            in_key=in_key,
            models=base_files(node),
            modules=[
                f"pipelines.{LOSS}.{settings.loss.get('kind')}",
                *(f"pipelines.monitor.{rule.get('kind')}" for rule in settings.monitors),
            ],
            libraries=(*TEXT, *TORCH),
        )

    def check(self, node: Node) -> None:
        """Its splits exist, it starts from a trained model, its loss and monitors can work."""
        for field in ("split", "heldout"):
            check_split(node, f"reward_model.{field}", getattr(node.settings, field))
        check_trained(node)
        loss = bound_loss(node.settings)
        if LENGTH_HEAD in loss.needs and node.settings.heads > 1:
            raise RecipeError(
                f"reward_model.heads: {loss.name} has its own two heads. Set heads: 1, and make an ensemble of several stages."
            )
        check_monitors("reward_model", node.settings)


def bound_loss(settings: RewardModel) -> Bound:
    """The chosen loss.

    Raises:
        RecipeError: there is no such loss, or no such setting of it.
    """
    return bind(LOSS, settings.loss)


KIND = RewardModelKind()
