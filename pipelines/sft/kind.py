"""Supervised fine-tuning as a kind of stage."""

from __future__ import annotations

from collections.abc import Iterator

from pipelines.base.errors import Problem, RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Part
from pipelines.recipe.settings import Sft
from pipelines.recipe.stage_checks import check_sources
from pipelines.recipe.stage_kind import Node
from pipelines.recipe.train_kind import FixedDataKind

SLOT = "sft.loss"


class SftKind(FixedDataKind):
    """A model trained on the solutions of the data."""

    name, settings, module = "sft", Sft, "pipelines.sft"
    makes_base = True
    slots = (SLOT,)
    headlines = ("loss/heldout", "loss/train")

    def problems(self, node: Node) -> Iterator[Problem]:
        """A remote engine that does not answer."""
        if node.settings.engine is not None:
            from pipelines.engine.tinker import session

            yield from session.problems(node)

    def check(self, node: Node) -> None:
        """The loss has what it compares with, and the sources that are named exist."""
        super().check(node)
        loss = bind(SLOT, node.settings.loss)
        if "logp_old" in loss.takes and node.settings.mini_batches == 1:
            raise RecipeError(
                "sft.loss",
                f"{loss.name} compares with the model before the step, and with mini_batches: 1 it is that model still: nothing is ever "
                "clipped",
                "Set mini_batches, such as 8, or use loss: cross_entropy.",
            )
        for field in ("weights", "mixture"):
            check_sources(node, f"sft.{field}", getattr(node.settings, field))

    def reads_part(self, settings: Sft) -> Part | None:
        """What is trained."""
        return Part.TARGET

    def info_fields(self, settings: Sft) -> dict[str, str]:
        """Where records have weights of their own."""
        return {"sft.weight_from": settings.weight_from} if settings.weight_from is not None else {}


KIND = SftKind()
