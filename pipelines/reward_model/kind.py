"""Learning a reward model as a kind of stage."""

from __future__ import annotations

from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import bind
from pipelines.contract.provenance import Provenance
from pipelines.recipe.provenance import of_labels
from pipelines.recipe.source import OF_ROWS
from pipelines.recipe.stage_checks import check_pairs, data_sources, plays_episodes
from pipelines.recipe.stage_kind import REWARD_MODEL, Node, Reads
from pipelines.recipe.train_kind import FixedDataKind
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
TRUNCATE = "pairs.truncate.by"
"""Label of the input of the reward model by whose confidence pairs are dropped."""


class RewardModelKind(FixedDataKind):
    """A model that scores answers, trained on pairs of them or on labels of their steps."""

    name, settings, module, makes = "reward_model", RewardModel, "pipelines.reward_model", REWARD_MODEL
    slots = (LOSS,)
    headlines = ("accuracy/heldout", "loss/heldout", "loss/train")

    link_takes = (REWARD_MODEL,)

    def links(self, settings: RewardModel) -> dict[str, str]:
        """The stage by whose confidence pairs are dropped."""
        return {} if settings.pairs.truncate is None else {TRUNCATE: settings.pairs.truncate.by}

    def link_fields(self, fields: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """Where it is written."""
        pairs = fields.get("pairs")
        truncate = pairs.get("truncate") if isinstance(pairs, dict) else None
        return [(truncate, "by")] if isinstance(truncate, dict) and "by" in truncate else []

    def reads(self, node: Node) -> Reads:
        """As of any such stage; the other stage's name is in no key."""
        reads = super().reads(node)
        if node.settings.pairs.truncate is not None:
            reads.in_key["reward_model", "pairs", "truncate", "by"] = None
        return reads

    def provenance(self, node: Node) -> tuple[Provenance]:
        """What its scores are learned from."""
        return (of_labels(node, "preferences" if node.settings.step_labels is None else "step labels"),)

    def check(self, node: Node) -> None:
        """Its data are what its loss learns from, and its other settings fit the loss."""
        super().check(node)
        loss = bound_loss(node.settings)
        if LENGTH_HEAD in loss.needs and node.settings.heads > 1:
            raise RecipeError(
                "reward_model.heads",
                f"{loss.name} has its own two heads",
                "Set heads: 1, and make an ensemble of several stages.",
            )
        _check_steps(loss, node)
        if node.settings.step_labels is None:
            check_pairs("reward_model", node)
        if OF_TURNS in loss.needs:
            _check_turns(loss, node)
        _check_critique(loss, node.settings)
        _check_users(loss, node.settings)
        _check_truncate(node)


def _check_steps(loss: Bound, node: Node) -> None:
    settings: RewardModel = node.settings
    if STEP_LABEL in loss.needs and settings.step_labels is None:
        raise RecipeError(
            "reward_model.step_labels",
            f"{loss.name} learns from labelled steps",
            "Give `step_labels: {separator: ...}`, what stands between two steps.",
        )
    if STEP_LABEL not in loss.needs and settings.step_labels is not None:
        raise RecipeError(
            "reward_model.loss",
            f"{loss.name} learns from pairs, and `step_labels` asks for labelled steps",
            "Use loss: step_bce, or leave `step_labels` out.",
        )
    if settings.step_labels is None:
        return
    for name, number, source in data_sources(node):
        of_rows = "steps" if source.kind in OF_ROWS else source.kind
        kind = source.select.kind if source.select is not None else of_rows
        if kind != "steps":
            raise RecipeError(
                "reward_model.data",
                f"{name} makes records of {kind} (sources.{number}), and {loss.name} learns from steps",
                "Use select: steps, or a file with completions and labels.",
            )


def _check_turns(loss: Bound, node: Node) -> None:
    """Some pairs of the split may have turns: those of files, and of stages that hold episodes."""
    single = []
    for name, _, source in data_sources(node):
        if source.splits is not None and node.settings.split not in source.splits:
            continue
        if source.select is None or plays_episodes(node.recipe.node(str(source.path))):
            return
        single.append(name)
    if single:
        raise RecipeError(
            "reward_model.loss",
            f"{loss.name} is about the turns of episodes, and {single[0]} makes pairs of single answers",
            "Use loss: bradley_terry, or select: segments or preferred of a stage that plays episodes.",
        )


def _check_critique(loss: Bound, settings: RewardModel) -> None:
    critiques = {name for name in loss.needs if "_critique_" in name}
    if critiques and settings.critique is None:
        raise RecipeError(
            "reward_model.critique",
            f"{loss.name} reads critiques, and none are asked for",
            "Give `critique: {source: records}` or `{source: own}`.",
        )
    if settings.critique is not None and set(ANSWER_TEXT) & set(loss.needs):
        raise RecipeError(
            "reward_model.loss",
            f"{loss.name} regularises by the text of the answers, and with `critique` the text is the critique",
            "Use loss: cloud, or leave `critique` out.",
        )


def _check_users(loss: Bound, settings: RewardModel) -> None:
    if LATENT in loss.needs and settings.users is None:
        raise RecipeError(
            "reward_model.users", f"{loss.name} infers a latent per user", "Give `users: {}`, or its size."
        )
    if settings.users is not None and loss.card.batch_coupled:
        raise RecipeError(
            "reward_model.users", f"{loss.name} couples the pairs of a step, which rewards per user do not support."
        )


def _check_truncate(node: Node) -> None:
    """The stage by whose confidence pairs are dropped has written it, of the same pairs."""
    truncate = node.settings.pairs.truncate
    if truncate is None:
        return
    other = node.recipe.node(truncate.by)
    if not other.settings.cartography:
        raise RecipeError(
            "reward_model.pairs.truncate.by",
            f"{truncate.by} writes no training dynamics",
            f"Set cartography: true in {truncate.by}.",
        )
    if other.named("data") != node.named("data") or other.settings.split != node.settings.split:
        raise RecipeError(
            "reward_model.pairs.truncate.by",
            f"{truncate.by} is trained on other pairs, and its confidence is of its own",
            "Give both stages the same data and split.",
        )


def bound_loss(settings: RewardModel) -> Bound:
    """The chosen loss.

    Raises:
        RecipeError: there is no such loss, or no such setting of it.
    """
    return bind(LOSS, settings.loss)


KIND = RewardModelKind()
