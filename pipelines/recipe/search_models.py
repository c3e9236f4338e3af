"""Where strategies of search name reward models: stages of the recipe, or checkpoints by their path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.recipe.model_path import CLASSIFIER, architecture_of, is_stage_name
from pipelines.recipe.search import RewardModelScore, Search
from pipelines.recipe.stage_kind import ModelFiles, Place

LABEL = "search"
"""What the labels of strategies' reward models among a stage's inputs begin with; that of strategy i ends with i."""


def links(searches: Sequence[Search]) -> dict[str, str]:
    """Input label → stage of kind reward_model that a strategy's score names."""
    return {
        f"{LABEL}.{number}": each.score.model
        for number, each in enumerate(searches)
        if isinstance(each.score, RewardModelScore) and is_stage_name(each.score.model)
    }


def link_fields(written: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where the written field names such stages."""
    for each in written if isinstance(written, list) else [written]:
        score = each.get("score") if isinstance(each, dict) else None
        if isinstance(score, dict) and score.get("kind") == "reward_model" and is_stage_name(str(score.get("model"))):
            yield score, "model"


def read_models(
    searches: Sequence[Search], section: str, *, listed: bool
) -> tuple[dict[Place, Any], dict[str, ModelFiles]]:
    """What the key holds instead of the stages' names, and the checkpoints that are named by their path.

    Args:
        section: of the recipe, such as `evaluate`.
        listed: the section holds a list of strategies.
    """
    in_key: dict[Place, Any] = {}
    files: dict[str, ModelFiles] = {}
    for number, each in enumerate(searches):
        if not isinstance(each.score, RewardModelScore):
            continue
        place: Place = (section, "search", *((number,) if listed else ()), "score", "model")
        if is_stage_name(each.score.model):
            in_key[place] = None
        else:
            files[f"{LABEL}.{number}"] = ModelFiles(each.score.model, place)
    return in_key, files


def check(searches: Sequence[Search], field: str) -> None:
    """Local checkpoints that score are reward models.

    Args:
        field: such as `evaluate.search`.

    Raises:
        RecipeError: one is a language model.
    """
    for each in searches:
        if not isinstance(each.score, RewardModelScore) or is_stage_name(each.score.model):
            continue
        architecture = architecture_of(each.score.model)
        if architecture is not None and not architecture.endswith(CLASSIFIER):
            raise RecipeError(
                f"{field}.score.model",
                f"{each.score.model} is no reward model but {architecture}",
                "Name a stage of kind reward_model, or a checkpoint for sequence classification with one label.",
            )


def scorers(searches: Sequence[Search], inputs: Mapping[str, str]) -> dict[int, str]:
    """Index of a strategy → folder or hub name of its reward model.

    Args:
        inputs: of the job: label → artifact.
    """
    paths = {}
    for number, each in enumerate(searches):
        label = f"{LABEL}.{number}"
        if label in inputs:
            paths[number] = f"{inputs[label]}/model"
        elif isinstance(each.score, RewardModelScore):
            paths[number] = each.score.model
    return paths
