"""Learning a reward model as a kind of stage."""

from __future__ import annotations

from typing import ClassVar

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import bind
from pipelines.contract.provenance import Provenance
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
from pipelines.recipe.stage_kind import DATA, MODEL, REWARD_MODEL, TEXT, TORCH, Kind, Node, Port, Reads
from pipelines.reward_model.settings import RewardModel

LOSS = "reward_model.loss"
LENGTH_HEAD = "chosen_length_reward"
"""A loss that reads this column has a second head, which only training uses."""
LATENT = "latent_kl"
"""A loss that reads this column needs `reward_model.users`."""
ANSWER_TEXT = ("chosen_logp", "rejected_logp")
CRITIQUE_TEXT = ("chosen_critique_logp", "rejected_critique_logp")
"""A loss that reads one of these trains the language head, on the answers or on their critiques."""


OF_TURNS = "chosen_prior"
"""A loss that reads this column says something of answers of several turns only."""
STEP_LABEL = "step_label"
"""A loss that reads this column learns from labelled steps, any other from pairs."""


class RewardModelKind(Kind):
    """A model that scores answers, trained on pairs of them or on labels of their steps."""

    name, settings, module, makes = "reward_model", RewardModel, "pipelines.reward_model", REWARD_MODEL
    slots = (LOSS,)
    ports: ClassVar[dict[str, Port]] = {"data": Port((DATA,)), "model": Port((MODEL,), required=False)}
    trains = True
    headlines = ("accuracy/heldout", "loss/heldout", "loss/train")

    def reads(self, node: Node) -> Reads:
        """The loss, and the model that it starts from."""
        model, in_key = model_settings(node)
        settings: RewardModel = node.settings
        return Reads(
            {"reward_model": resolve(settings), "model": model},
            in_key=in_key,
            models=base_files(node),
            **part_reads([(LOSS, settings.loss.get("kind")), *monitors(settings)]),
            libraries=(*TEXT, *TORCH),
        )

    def provenance(self, node: Node) -> tuple[Provenance]:
        """What its scores are learned from."""
        return (of_labels(node, "preferences" if node.settings.step_labels is None else "step labels"),)

    def check(self, node: Node) -> None:
        """Its splits exist, it starts from a trained model, its loss and monitors can work."""
        for field in ("split", "heldout"):
            check_split(node, f"reward_model.{field}", getattr(node.settings, field))
        check_heldout("reward_model", node.settings)
        check_trained(node)
        loss = bound_loss(node.settings)
        if LENGTH_HEAD in loss.needs and node.settings.heads > 1:
            raise RecipeError(
                f"reward_model.heads: {loss.name} has its own two heads. Set heads: 1, and make an ensemble of several stages."
            )
        _check_steps(loss, node)
        if node.settings.step_labels is None:
            check_pairs("reward_model", node)
        if OF_TURNS in loss.needs:
            _check_turns(loss, node)
        _check_critique(loss, node.settings)
        _check_users(loss, node.settings)
        check_monitors("reward_model", node.settings)


def _check_steps(loss: Bound, node: Node) -> None:
    settings: RewardModel = node.settings
    if STEP_LABEL in loss.needs and settings.step_labels is None:
        raise RecipeError(
            f"reward_model.step_labels: {loss.name} learns from labelled steps. Give `step_labels: {{separator: ...}}`, what stands "
            "between two steps."
        )
    if STEP_LABEL not in loss.needs and settings.step_labels is not None:
        raise RecipeError(
            f"reward_model.loss: {loss.name} learns from pairs, and `step_labels` asks for labelled steps. Use loss: step_bce, or leave "
            "`step_labels` out."
        )
    if settings.step_labels is None:
        return
    for name in node.named("data"):
        for number, source in enumerate(getattr(node.recipe.node(name).settings, "sources", ())):
            kind = (
                source.select.kind
                if source.select is not None
                else "steps"
                if source.kind in ("file", "hub")
                else source.kind
            )
            if kind != "steps":
                raise RecipeError(
                    f"reward_model.data: {name} makes records of {kind} (sources.{number}), and {loss.name} learns from steps. Use select: "
                    "steps, or a file with completions and labels."
                )


def _check_turns(loss: Bound, node: Node) -> None:
    """Some pairs of the split may have turns: those of files, and of stages that hold episodes."""
    single = []
    for name in node.named("data"):
        for source in getattr(node.recipe.node(name).settings, "sources", ()):
            if source.splits is not None and node.settings.split not in source.splits:
                continue
            if source.select is None or plays_episodes(node.recipe.node(str(source.path))):
                return
            single.append(name)
    if single:
        raise RecipeError(
            f"reward_model.loss: {loss.name} is about the turns of episodes, and {single[0]} makes pairs of single answers. Use loss: "
            "bradley_terry, or select: segments or preferred of a stage that plays episodes."
        )


def _check_critique(loss: Bound, settings: RewardModel) -> None:
    critiques = {name for name in loss.needs if "_critique_" in name}
    if critiques and settings.critique is None:
        raise RecipeError(
            f"reward_model.critique: {loss.name} reads critiques, and none are asked for. Give `critique: {{source: records}}` "
            "or `{source: own}`."
        )
    if settings.critique is not None and set(ANSWER_TEXT) & set(loss.needs):
        raise RecipeError(
            f"reward_model.loss: {loss.name} regularises by the text of the answers, and with `critique` the text is the critique. "
            "Use loss: cloud, or leave `critique` out."
        )


def _check_users(loss: Bound, settings: RewardModel) -> None:
    if LATENT in loss.needs and settings.users is None:
        raise RecipeError(f"reward_model.users: {loss.name} infers a latent per user. Give `users: {{}}`, or its size.")
    if settings.users is not None and loss.card.batch_coupled:
        raise RecipeError(
            f"reward_model.users: {loss.name} couples the pairs of a step, which rewards per user do not support."
        )


def bound_loss(settings: RewardModel) -> Bound:
    """The chosen loss.

    Raises:
        RecipeError: there is no such loss, or no such setting of it.
    """
    return bind(LOSS, settings.loss)


KIND = RewardModelKind()
