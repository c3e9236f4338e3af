"""Preference optimisation as a kind of stage."""

from __future__ import annotations

from typing import ClassVar

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.provenance import Provenance
from pipelines.preference.settings import Preference
from pipelines.recipe.check_monitors import check_monitors
from pipelines.recipe.provenance import of_labels
from pipelines.recipe.resolve import resolve
from pipelines.recipe.stage_checks import (
    base_files,
    check_heldout,
    check_pairs,
    check_split,
    check_trained,
    model_settings,
    monitors,
    part_reads,
    plays_episodes,
)
from pipelines.recipe.stage_kind import DATA, MODEL, TEXT, TORCH, Kind, Node, Port, Reads

SLOT = "preference.loss"


class PreferenceKind(Kind):
    """A model trained on pairs of answers."""

    name, settings, module, makes = "preference", Preference, "pipelines.preference", MODEL
    ports: ClassVar[dict[str, Port]] = {"data": Port((DATA,)), "model": Port((MODEL,), required=False)}
    trains = True
    slots = (SLOT,)
    headlines = ("accuracy/heldout", "loss/heldout", "rewards/margin")

    def reads(self, node: Node) -> Reads:
        """The model, the loss by its name, and the monitors."""
        model, in_key = model_settings(node)
        return Reads(
            {"preference": resolve(node.settings), "model": model},
            in_key=in_key,
            models=base_files(node),
            **part_reads([(SLOT, node.settings.loss.get("kind")), *monitors(node.settings)]),
            libraries=(*TEXT, *TORCH),
        )

    def provenance(self, node: Node) -> tuple[Provenance]:
        """The implicit reward of its loss."""
        return (of_labels(node, "preferences"),)

    def check(self, node: Node) -> None:
        """The loss and its settings exist, the splits too, there is a trained model to start from, and its monitors can watch."""
        bind(SLOT, node.settings.loss)
        for field in ("split", "heldout"):
            check_split(node, f"preference.{field}", getattr(node.settings, field))
        check_heldout("preference", node.settings)
        check_pairs("preference", node)
        check_trained(node)
        check_monitors("preference", node.settings)
        for name in node.named("data"):
            for number, source in enumerate(getattr(node.recipe.node(name).settings, "sources", ())):
                if source.select is None or source.select.kind not in ("segments", "preferred"):
                    continue
                if plays_episodes(node.recipe.node(str(source.path))):
                    raise RecipeError(
                        f"preference.data: {name} makes pairs of parts of episodes (sources.{number}.select: {source.select.kind}), "
                        "and a preference loss compares two answers to one prompt. Train a stage of kind reward_model on them."
                    )


KIND = PreferenceKind()
