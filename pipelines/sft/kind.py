"""Supervised fine-tuning as a kind of stage."""

from __future__ import annotations

from typing import ClassVar

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


class SftKind(Kind):
    """A model trained on the solutions of the data."""

    name, settings, module, makes = "sft", Sft, "pipelines.sft", MODEL
    ports: ClassVar[dict[str, Port]] = {"data": Port((DATA,)), "model": Port((MODEL,), required=False)}
    trains = makes_base = True
    headlines = ("loss/heldout", "loss/train")

    def reads(self, node: Node) -> Reads:
        """The whole model section where it starts from the recipe's own model."""
        model, in_key = model_settings(node, initialises=True)
        return Reads(
            {"sft": resolve(node.settings), "model": model},
            in_key=in_key,
            models=base_files(node),
            modules=[f"pipelines.monitor.{rule.get('kind')}" for rule in node.settings.monitors],
            libraries=(*TEXT, *TORCH),
        )

    def check(self, node: Node) -> None:
        """Its splits exist, and its monitors can watch."""
        for field in ("split", "heldout"):
            check_split(node, f"sft.{field}", getattr(node.settings, field))
        check_monitors("sft", node.settings)


KIND = SftKind()
