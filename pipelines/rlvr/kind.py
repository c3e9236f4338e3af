"""RLVR as a kind of stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pipelines.base.errors import Problem, RecipeError
from pipelines.contract.catalogue import card, load
from pipelines.contract.provenance import Provenance
from pipelines.data.records import Part
from pipelines.recipe import check
from pipelines.recipe.model_path import PATHS
from pipelines.recipe.players import check_trained_games
from pipelines.recipe.resolve import resolve
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import PROVIDERS, SLOTS, bind_providers, bind_slots, bound_list, terms_of
from pipelines.recipe.stage_checks import (
    base_files,
    check_episodes,
    check_optimizer,
    check_quantized,
    check_split,
    check_trained,
    data_environments,
    environment_settings,
    is_quantized,
    model_settings,
    monitors,
    part_reads,
    plays_episodes,
    verifiers_used,
)
from pipelines.recipe.stage_kind import (
    DATA,
    MODEL,
    QLORA,
    REWARD_MODEL,
    SAMPLES,
    TEXT,
    TORCH,
    VERIFIERS,
    Kind,
    ModelFiles,
    Node,
    Port,
    Reads,
)
from pipelines.rlvr import gold_answers, info_fields, provenance, reward_models

PLAYS = "turn_reward"
"""The column of rollouts that play episodes."""


class RlvrKind(Kind):
    """A model trained on the rewards of its own rollouts."""

    name, settings, module, makes = "rlvr", Rlvr, "pipelines.rlvr", MODEL
    ports: ClassVar[dict[str, Port]] = {
        "data": Port((DATA,)),
        "model": Port((MODEL,), required=False),
        "samples": Port((SAMPLES,), required=False),
    }
    link_takes = (REWARD_MODEL, MODEL)
    trains = rewards = methods = True
    headlines = ("reward/correct", "reward/mean", "rollout/length_mean", "policy/entropy")

    def takes(self, settings: Rlvr, label: str) -> tuple[str, ...]:
        """A reward model where the setting is for one, else a model."""
        return tuple(each.makes for each in reward_models.named(resolve(settings)) if each.label == label)

    def link_hint(self, label: str) -> str:
        """How paths and hub names are told from stages."""
        return PATHS

    def links(self, settings: Rlvr) -> dict[str, str]:
        """Reward models, judges and models to score with that are stages."""
        return {each.label: each.value for each in reward_models.named(resolve(settings)) if each.is_stage}

    def link_fields(self, fields: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """Where they are written."""
        return [(each.holder, each.key) for each in reward_models.named(fields) if each.is_stage]  # type: ignore[misc]

    def reads(self, node: Node) -> Reads:
        """The chosen methods, and the environments that the data come from."""
        rl: Rlvr = node.settings
        model, in_key = model_settings(node)
        environments, any_environment = data_environments(node)
        reads = Reads(
            {"rlvr": resolve(rl), "model": model},
            in_key=in_key,
            models=base_files(node),
            **part_reads(_parts(rl)),
            environments=environments,
            any_environment=any_environment,
            environment_settings=[*environment_settings(node), *_reward_infos(rl)],
            verifies=True,
            verifiers=verifiers_used(node),
            libraries=(*VERIFIERS, *TEXT, *TORCH, *(QLORA if is_quantized(rl) else ())),
        )
        for each in reward_models.named(reads.settings["rlvr"]):
            if each.is_stage:
                reads.in_key["rlvr", *each.place] = None
            elif not each.is_role:
                reads.models[each.label] = ModelFiles(each.value, ("rlvr", *each.place))
        return reads

    def reads_part(self, settings: Rlvr) -> Part | None:
        """A gold answer where the records' verifiers pay."""
        return Part.GOLD if gold_answers.are_read(settings.reward) else None

    def info_fields(self, settings: Rlvr) -> dict[str, str]:
        """Those that methods read."""
        return dict(info_fields.written(settings))

    def provenance(self, node: Node) -> Iterator[Provenance]:
        """Of every part that pays."""
        return provenance.rewards(node)

    def problems(self, node: Node) -> Iterator[Problem]:
        """A remote engine that does not answer."""
        if node.settings.engine is not None:
            from pipelines.engine.tinker import session

            yield from session.problems(node)

    def check(self, node: Node) -> None:
        """The methods fit each other, and there is a model that can be sampled."""
        check_split(node, "rlvr.split", node.settings.split)
        check_trained(node)
        rl: Rlvr = node.settings
        check_quantized("rlvr", rl)
        check_optimizer(node)
        if rl.by_source or rl.reward.get("terms"):
            from pipelines.rlvr import by_source

            by_source.check(node)
        check.methods(node)
        if rl.engine is not None:
            from pipelines.recipe.engine_checks import check_engine

            check_engine(node)
        _check_roles(node)
        check_trained_games(node)
        _check_samples(node)
        rollout = str(rl.rollout.get("kind"))
        about = card(load("rlvr.rollout", rollout))
        others = [name for name, own in rl.by_source.items() if own.rollout is not None]
        check_episodes(node, "rlvr.rollout", rollout, rl.split, PLAYS in about.makes, others)
        _check_users(node)
        reward_models.check(resolve(node.settings))


def _check_users(node: Node) -> None:
    """A reward for a user needs a reward model that learned from users' pairs."""
    for each in reward_models.named(resolve(node.settings)):
        if not each.is_stage or each.makes != REWARD_MODEL or not isinstance(each.holder, dict):
            continue
        user, scorer = each.holder.get("user"), node.recipe.node(each.value)
        if user is not None and scorer.settings.users is None:
            raise RecipeError(
                f"rlvr.{each.label}",
                f"{each.value} knows no users, so there is none called {str(user)[:80]!r}",
                f"Give {each.value} a loss with `users`, or leave user out.",
            )


def _check_roles(node: Node) -> None:
    """No stage is called as the settings that name a model call the policy, or the model that the run started from."""
    for each in reward_models.named(resolve(node.settings)):
        if each.is_role and each.value in node.recipe.graph:
            raise RecipeError(
                f"rlvr.{each.label}",
                f"{each.value} is {each.meaning} here, and a stage of the recipe has this name too",
                "Call the stage otherwise.",
            )


def _check_samples(node: Node) -> None:
    """Stored completions are named where the rollout reads them, and nowhere else."""
    kind = str(node.settings.rollout.get("kind"))
    rollout, named = load("rlvr.rollout", kind), bool(node.named("samples"))
    reads, of_episodes = rollout.reads_samples, rollout.reads_episodes  # type: ignore[attr-defined]
    if reads and not named:
        raise RecipeError(
            "rlvr.samples", f"the rollout {kind} reads stored completions", "Name a stage of kind sample."
        )
    if named and not reads:
        raise RecipeError(
            "rlvr.samples",
            f"the rollout {kind} draws its own completions",
            "Use rollout: stored or stored_demonstrated, or leave samples out.",
        )
    for name in node.named("samples"):
        plays = plays_episodes(node.recipe.node(name))
        if plays and not of_episodes:
            raise RecipeError(
                "rlvr.samples",
                f"{name} holds episodes, and the rollout {kind} reads single answers",
                "Use rollout: stored_episodes, or name a stage that samples those.",
            )
        if of_episodes and not plays:
            raise RecipeError(
                "rlvr.samples",
                f"{name} samples single answers, and the rollout {kind} reads episodes",
                f"Use rollout: stored, or give {name} `episodes: {{max_turns: 10}}`.",
            )
        if node.recipe.node(name).asks_endpoint("model"):
            raise RecipeError(
                "rlvr.samples",
                f"{name} asks an endpoint, which does not say how likely the tokens of its answers are",
                "Learn from them in an sft stage, or name a stage that samples a model of the recipe.",
            )
        if getattr(node.recipe.node(name).settings, "new_prompts", None) is not None:
            raise RecipeError(
                "rlvr.samples",
                f"{name} writes new prompts, and the rollout {kind} reads answers",
                "Name a stage that answers them.",
            )
    if reads and node.settings.window is not None:
        raise RecipeError("rlvr.window", f"the rollout {kind} draws nothing that could be cut", "Leave it out.")


def _parts(rl: Rlvr) -> list[tuple[str, Any]]:
    """(slot, name) of the chosen methods, providers and monitors, and of the providers that join by themselves."""
    chosen: list[tuple[str, Any]] = []
    for slot in SLOTS:
        spec = getattr(rl, slot)
        for part in spec if isinstance(spec, list) else [] if spec is None else [spec]:
            chosen += [(f"rlvr.{slot}", each.get("kind")) for _, each in terms_of(slot, part)]
    for own in rl.by_source.values():
        parts = {slot: getattr(own, slot) for slot in ("rollout", "objective", "divergence")}
        chosen += [(f"rlvr.{slot}", part.get("kind")) for slot, part in parts.items() if part is not None]
    chosen += [(PROVIDERS, part.get("kind")) for part in rl.providers]
    chosen += [(PROVIDERS, name) for name in _joining(rl)]
    return [*dict.fromkeys([*chosen, *monitors(rl)])]


def _joining(rl: Rlvr) -> list[str]:
    """The providers of the columns that the chosen methods read; none where a method is not right, which the check says."""
    try:
        return [each.name for each in bind_providers(rl, bound_list(bind_slots(rl)))]
    except RecipeError:
        return []


def _reward_infos(rl: Rlvr) -> list[dict[str, Any]]:
    """What the recipe gives verifiers beside the records' info, which may name files."""
    infos = [spec.get("info") for _, spec in terms_of("", rl.reward)]
    return [info for info in infos if isinstance(info, dict)]


KIND = RlvrKind()
