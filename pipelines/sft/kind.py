"""Supervised fine-tuning as a kind of stage."""

from __future__ import annotations

from typing import ClassVar

from pipelines.contract.catalogue import bind
from pipelines.errors import RecipeError
from pipelines.recipe.check_monitors import check_monitors
from pipelines.recipe.graph import Node
from pipelines.recipe.resolve import resolve
from pipelines.recipe.settings import Sft
from pipelines.recipe.stage_kind import (
    DATA,
    MODEL,
    TEXT,
    TORCH,
    Kind,
    Port,
    Reads,
    base_files,
    check_split,
    model_settings,
)

SLOT = "sft.loss"


class SftKind(Kind):
    """A model trained on the solutions of the data."""

    name, settings, module, makes = "sft", Sft, "pipelines.sft", MODEL
    ports: ClassVar[dict[str, Port]] = {"data": Port((DATA,)), "model": Port((MODEL,), required=False)}
    trains = makes_base = True
    slots = (SLOT,)
    headlines = ("loss/heldout", "loss/train")

    def reads(self, node: Node) -> Reads:
        """The whole model section where it starts from the recipe's own model; the loss by its name, and the monitors."""
        model, in_key = model_settings(node, initialises=True)
        return Reads(
            {"sft": resolve(node.settings), "model": model},
            in_key=in_key,
            models=base_files(node),
            modules=[
                f"pipelines.{SLOT}.{node.settings.loss.get('kind')}",
                *(f"pipelines.monitor.{rule.get('kind')}" for rule in node.settings.monitors),
            ],
            libraries=(*TEXT, *TORCH),
        )

    def check(self, node: Node) -> None:
        """The loss exists and has what it compares with, the splits exist too, and its monitors can watch."""
        loss = bind(SLOT, node.settings.loss)
        if "logp_old" in loss.takes and node.settings.mini_batches == 1:
            raise RecipeError(
                f"sft.loss: {loss.name} compares with the model before the step, and with mini_batches: 1 it is that model still: nothing "
                "is ever clipped. Set sft.mini_batches, such as 8, or use loss: cross_entropy."
            )
        for field in ("split", "heldout"):
            check_split(node, f"sft.{field}", getattr(node.settings, field))
        check_monitors("sft", node.settings)


KIND = SftKind()
