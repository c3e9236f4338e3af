"""Supervised fine-tuning as a kind of stage."""

from __future__ import annotations

from typing import ClassVar

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.contract.catalogue import bind
from pipelines.recipe.check_monitors import check_monitors
from pipelines.recipe.resolve import resolve
from pipelines.recipe.settings import Sft
from pipelines.recipe.stage_checks import (
    base_files,
    check_heldout,
    check_split,
    feeding,
    model_settings,
    monitors,
    part_reads,
)
from pipelines.recipe.stage_kind import DATA, MODEL, TEXT, TORCH, Kind, Node, Port, Reads

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
            **part_reads([(SLOT, node.settings.loss.get("kind")), *monitors(node.settings)]),
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
        check_heldout("sft", node.settings)
        _check_sources(node)
        check_monitors("sft", node.settings)

    def info_fields(self, settings: Sft) -> dict[str, str]:
        """Where records have weights of their own."""
        return {"sft.weight_from": settings.weight_from} if settings.weight_from is not None else {}


def _check_sources(node: Node) -> None:
    """Weights and mixture name sources of the split, where these are known before the data are: rows of files may name others."""
    sources = [source for _, source in feeding(node, node.settings.split)]
    if not sources or any(source.task is None for source in sources):
        return
    known = {str(source.task) for source in sources}
    for field in ("weights", "mixture"):
        for name in getattr(node.settings, field):
            if name not in known:
                raise RecipeError(
                    f"sft.{field}: {node.settings.split} has no records of a source {name[:80]!r}. {did_you_mean(name[:80], known)}"
                )


KIND = SftKind()
