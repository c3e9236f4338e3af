"""Preference optimisation as a kind of stage."""

from __future__ import annotations

from collections.abc import Iterator

from pipelines.base.errors import Problem, RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.provenance import Provenance
from pipelines.data.records import Part
from pipelines.preference.settings import Preference
from pipelines.recipe.provenance import of_labels
from pipelines.recipe.stage_checks import check_pairs, data_sources, plays_episodes
from pipelines.recipe.stage_kind import Node
from pipelines.recipe.train_kind import FixedDataKind

SLOT = "preference.loss"
REFERENCE = ("chosen_logp_ref", "rejected_logp_ref", "logp_ref", "kl")
"""Columns that need the reference."""


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

    def problems(self, node: Node) -> Iterator[Problem]:
        """A remote engine that does not answer."""
        if node.settings.engine is not None:
            from pipelines.engine.tinker import session

            yield from session.problems(node)

    def check(self, node: Node) -> None:
        """Its data are pairs of whole answers."""
        super().check(node)
        check_reference(node.settings)
        _check_of_engine(node)
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


def _check_of_engine(node: Node) -> None:
    """A loss that weighs tokens by the policy's whole distribution is not trained on a server, which gives none.

    Raises:
        RecipeError: it is to be.
    """
    loss = bind(SLOT, node.settings.loss)
    if node.settings.engine is not None and any(name.endswith("on_policy") for name in loss.takes):
        raise RecipeError(
            "preference.loss",
            f"{loss.name} needs the probabilities of tokens that are in no answer, and a remote engine gives none",
            "Choose another loss, or leave `engine` out.",
        )


def check_reference(settings: Preference) -> None:
    """A reference that follows the policy is one that the loss reads.

    Raises:
        RecipeError: it does not.
    """
    loss = bind(SLOT, settings.loss)
    if settings.reference_every is not None and not any(name in loss.takes for name in REFERENCE):
        raise RecipeError(
            "preference.reference_every",
            f"{loss.name} compares with no reference",
            "Leave it out, or choose a loss that does, such as dpo.",
        )


KIND = PreferenceKind()
