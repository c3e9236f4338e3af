"""Sampling as a kind of stage."""

from __future__ import annotations

from typing import Any, ClassVar

from pipelines.base.errors import RecipeError
from pipelines.recipe import search_models
from pipelines.recipe.players import check_sampled_games
from pipelines.recipe.resolve import resolve
from pipelines.recipe.search import Search
from pipelines.recipe.stage_checks import (
    base_files,
    check_episodes,
    check_split,
    check_trained,
    data_environments,
    environment_settings,
    model_settings,
    plays_episodes,
    tokenizer_settings,
    verifiers_used,
)
from pipelines.recipe.stage_kind import (
    BASE,
    DATA,
    MODEL,
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
from pipelines.sample.settings import READING, Sample

GUIDE = "guidance.base"
"""Label of the base of guidance among the inputs."""


class SampleKind(Kind):
    """Scored completions of a model on the problems of data."""

    name, settings, module, makes = "sample", Sample, "pipelines.sample", SAMPLES
    ports: ClassVar[dict[str, Port]] = {
        "data": Port((DATA, SAMPLES)),
        "model": Port((MODEL,), required=False, endpoint=True),
        "reward_model": Port((REWARD_MODEL,), required=False),
    }
    headlines = ("pass_at_1", "pass_at_k", "length/mean")

    def links(self, settings: Sample) -> dict[str, str]:
        """The reference, the base of guidance, and the reward model of search."""
        named = {"reference": settings.reference, GUIDE: settings.guidance.base if settings.guidance else None}
        models = {label: stage for label, stage in named.items() if stage is not None}
        return models | search_models.links(_strategies(settings))

    def takes(self, settings: Sample, label: str) -> tuple[str, ...]:
        """A reward model where one scores."""
        return (REWARD_MODEL,) if label.startswith(search_models.LABEL) else (MODEL,)

    def link_fields(self, fields: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """Where they are written."""
        guidance = fields.get("guidance")
        written = [(fields, "reference"), *([(guidance, "base")] if isinstance(guidance, dict) else [])]
        models = [(holder, key) for holder, key in written if holder.get(key) is not None]
        return models + list(search_models.link_fields(fields.get("search")))

    def reads(self, node: Node) -> Reads:
        """The model, and the environments that the data come from."""
        model, in_key = model_settings(node) if node.settings.model is None else (tokenizer_settings(node), {})
        environments, any_environment = data_environments(node)
        if node.settings.reference is not None:
            in_key["sample", "reference"] = None
        if node.settings.guidance is not None:
            in_key["sample", "guidance", "base"] = None
        names, files = search_models.read_models(_strategies(node.settings), "sample", listed=False)
        return Reads(
            {"sample": resolve(node.settings), "model": model},
            in_key=in_key | names,
            models=_tokenizer(node) | base_files(node) | files,
            environments=environments,
            any_environment=any_environment,
            environment_settings=environment_settings(node),
            verifies=True,
            verifiers=verifiers_used(node),
            skip=frozenset({"pipelines.sample.asked"}) if node.settings.model is None else frozenset(),
            libraries=(*VERIFIERS, *TEXT, *TORCH),
            computes=node.settings.model is None,
        )

    def check(self, node: Node) -> None:
        """The split exists, and there is a model that can be sampled."""
        check_split(node, "sample.split", node.settings.split)
        check_trained(node)
        _check_stored(node)
        search_models.check(_strategies(node.settings), "sample.search")
        if node.settings.episodes is not None:
            check_sampled_games(node)
        plays = node.settings.episodes is not None
        check_episodes(node, f"sample.{'episodes' if plays else 'k'}", "the stage", node.settings.split, plays)
        if node.settings.episodes is not None and node.named("reward_model"):
            raise RecipeError(
                "sample.reward_model",
                "it scores single answers, and `episodes` plays several turns",
                "Leave one of the two out.",
            )
        if node.settings.new_prompts is not None and node.named("reward_model"):
            raise RecipeError(
                "sample.reward_model",
                "it scores answers, and `new_prompts` asks for prompts",
                "Leave one of the two out.",
            )
        if node.settings.model is not None and node.named("reward_model"):
            raise RecipeError(
                "sample.reward_model",
                "it reads the tokens of answers, and an endpoint gives their text",
                "Leave it out, or score them in an rlvr stage.",
            )
        guidance, (model, *_) = node.settings.guidance, node.parents or [BASE]
        if guidance is not None and (model == BASE or guidance.base not in node.recipe.node(model).made_from):
            raise RecipeError(
                "sample.guidance.base",
                f"{model} was not made from {guidance.base}",
                f"Name a stage that {model} starts from, at any distance.",
            )
        sampling = node.settings.sampling
        if sampling.temperature == 0 and node.settings.k > 1 and not plays:
            raise RecipeError(
                "sample.sampling.temperature",
                f"at 0 all {node.settings.k} completions of a problem are equal",
                "Set k: 1, or a temperature above 0.",
            )
        truncated = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
        if node.settings.reference is not None and (sampling.temperature == 0 or truncated):
            raise RecipeError(
                "sample.reference",
                "the KL to it is infinite where sampling is greedy or leaves tokens out",
                "Use a temperature above 0 without top_p, top_k and min_p.",
            )


def _tokenizer(node: Node) -> dict[str, ModelFiles]:
    """What the answers of an endpoint are counted in tokens with: the tokenizer of the recipe's model."""
    if node.settings.model is None:
        return {}
    return {"model": ModelFiles(node.recipe.model.path, ("model", "path"), weights=False)}


def _strategies(settings: Sample) -> list[Search]:
    return [] if settings.search is None else [settings.search]


def _check_stored(node: Node) -> None:
    """Completions are what `step_labels` and `comparisons` need, and what nothing else can use."""
    stored = [name for name in node.named("data") if node.recipe.node(name).kind.makes == SAMPLES]
    reading = next((field for field in READING if getattr(node.settings, field) is not None), None)
    if reading is None:
        if stored:
            raise RecipeError(
                "sample.data",
                f"{stored[0]} makes completions, which only `step_labels` and `comparisons` read",
                "Give one of them, or name the data with the problems.",
            )
        return
    if not stored:
        raise RecipeError("sample.data", f"{reading} reads completions", "Name the sample stage that drew them.")
    if node.named("reward_model"):
        raise RecipeError(
            "sample.reward_model", f"it scores new completions, and `{reading}` draws none", "Leave one of the two out."
        )
    if node.recipe.node(stored[0]).settings.new_prompts is not None:
        raise RecipeError(
            f"sample.{reading}", f"{stored[0]} writes new prompts, and prompts have no steps", "Answer them first."
        )
    if reading == "step_labels" and plays_episodes(node.recipe.node(stored[0])):
        raise RecipeError(
            "sample.step_labels",
            f"{stored[0]} plays episodes, whose turns get their labels without more sampling: curate them with select: steps.",
        )


KIND = SampleKind()
