"""Preference optimisation as a kind of stage."""

from __future__ import annotations

from pipelines.base.errors import RecipeError
from pipelines.contract.provenance import Provenance
from pipelines.data.records import Part
from pipelines.preference.settings import Preference
from pipelines.recipe.provenance import of_labels
from pipelines.recipe.stage_checks import check_pairs, data_sources, plays_episodes
from pipelines.recipe.stage_kind import Node
from pipelines.recipe.train_kind import FixedDataKind

SLOT = "preference.loss"


class PreferenceKind(FixedDataKind):
    """A model trained on pairs of answers."""

    name, settings, module = "preference", Preference, "pipelines.preference"
    slots = (SLOT,)
    headlines = ("accuracy/heldout", "loss/heldout", "rewards/margin")

    def reads_part(self, settings: Preference) -> Part | None:
        """What is preferred."""
        return Part.PAIR

    def provenance(self, node: Node) -> tuple[Provenance]:
        """The implicit reward of its loss."""
        return (of_labels(node, "preferences"),)

    def check(self, node: Node) -> None:
        """Its data are pairs of whole answers."""
        super().check(node)
        check_pairs("preference", node)
        for name, number, source in data_sources(node):
            if source.select is None or source.select.kind not in ("segments", "preferred"):
                continue
            if plays_episodes(node.recipe.node(str(source.path))):
                raise RecipeError(
                    "preference.data",
                    f"{name} makes pairs of parts of episodes (sources.{number}.select: {source.select.kind}), and a preference loss "
                    "compares two answers to one prompt",
                    "Train a stage of kind reward_model on them.",
                )


KIND = PreferenceKind()
