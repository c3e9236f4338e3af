"""Evaluation as a kind of stage."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar

from evaluation import generation
from pipelines.errors import RecipeError, did_you_mean
from pipelines.recipe.graph import Node, numbered
from pipelines.recipe.guidance import GuidedColumns
from pipelines.recipe.players import check_evaluated_games
from pipelines.recipe.resolve import resolve
from pipelines.recipe.settings import CHECKPOINTS, Evaluate
from pipelines.recipe.stage_kind import (
    BASE,
    MODEL,
    SCORES,
    TEXT,
    TORCH,
    VERIFIERS,
    Kind,
    Port,
    Reads,
    base_files,
    model_settings,
)

DECIDES = ("task", "size", "seed", "config")
"""Fields of an environment that decide on its problems."""


@dataclass(frozen=True)
class Guided:
    """A column of one model guided away from another, in the labels of the artifact."""

    name: str
    suffix: str
    """What its name has beside the model's."""
    model: str
    base: str
    weight: float


class EvaluateKind(Kind):
    """Benchmarks for models of the graph, and paired differences along its edges."""

    name, settings, module, makes = "evaluate", Evaluate, "evaluation", SCORES
    ports: ClassVar[dict[str, Port]] = {"models": Port((MODEL,), many=True)}
    benchmark_texts = "evaluation.documents:questions"

    def default_inputs(self, makes: dict[str, str]) -> dict[str, tuple[str, ...]]:
        """Without `models`: the base and every model of the recipe."""
        return {"models": (BASE, *(name for name, what in makes.items() if what == MODEL))}

    def labels(self, node: Node, port: str, names: list[str]) -> dict[str, str]:
        """By the models' kinds; where the base is one that a stage initialises, that stage comes too."""
        maker = node.recipe.base_maker
        extra = [maker] if maker is not None and BASE in names and maker not in names else []
        graph = node.recipe.graph
        listed = [*names, *extra]
        kinds_listed = [BASE if name == BASE else graph[name].kind for name in listed]
        return dict(zip(numbered(kinds_listed), listed, strict=True))

    def imports(self, node: Node) -> list[str]:
        """Also what draws the scores."""
        return [*super().imports(node), "matplotlib.pyplot"]

    def places(self, fields: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """The base of guidance."""
        guidance = fields.get("guidance")
        return [(guidance, "base")] if isinstance(guidance, dict) and guidance.get("base") is not None else []

    def shown(self, node: Node) -> dict[str, str]:
        """Also the guided columns."""
        names = node.labels
        return names | {each.name: f"{names[each.model]}-{each.suffix}" for each in guided(node)}

    def check(self, node: Node) -> None:
        """Named stages are listed under `models`; guidance goes between two of them, the one made from the other."""
        if node.recipe.stages and node.settings.checkpoints != list(CHECKPOINTS):
            raise RecipeError("evaluate.checkpoints: is about plain sections; list the stages under evaluate.models.")
        check_evaluated_games(node.settings.tasks)
        if node.settings.guidance is None:
            return
        base, models = node.settings.guidance.base, node.named("models")
        if base not in models:
            raise RecipeError(
                f"evaluate.guidance.base: {base[:80]} is not evaluated here. {did_you_mean(base[:80], models)} Guidance goes from one of "
                "the evaluated models to those that were made from it."
            )
        if not guided(node):
            raise RecipeError(
                f"evaluate.guidance.base: none of the evaluated models was made from {base}. Name the one that the others start from."
            )
        for task in node.settings.tasks:
            unknown = generation.unknown(task.sampling)
            if unknown:
                raise RecipeError(
                    f"evaluate.tasks.{task.name}.sampling.{unknown[0]}: is not known to our sampler, which alone decodes with guidance. "
                    f"Leave it out; known are {', '.join(sorted(generation.KNOWN))}."
                )

    def reads(self, node: Node) -> Reads:
        """Benchmarks, environments, and what the models are asked with."""
        evaluate: Evaluate = node.settings
        model, in_key = model_settings(node)
        labels, edges = checkpoints(node), differences(node)
        if node.recipe.stages:
            in_key["evaluate", "checkpoints"] = labels
        if edges != [list(pair) for pair in pairwise(labels)]:
            in_key["evaluate", "differences"] = edges
        if evaluate.guidance is not None:
            in_key["evaluate", "guidance", "base"] = _label_of(node).get(evaluate.guidance.base)
        in_key["evaluate", "include"] = None
        return Reads(
            {"evaluate": resolve(evaluate), "model": model},
            in_key=in_key,
            models=base_files(node),
            benchmarks=[([t.asks for t in evaluate.tasks], evaluate.include)],
            environment_problems=[
                [task["limit"], *(task["environment"][name] for name in DECIDES)]
                for task in resolve(evaluate)["tasks"]
                if task["environment"]
            ],
            modules=["evaluation.scoring"],
            environments={t.environment.task for t in evaluate.tasks if t.environment is not None},
            environment_settings=[
                t.environment.config for t in evaluate.tasks if t.environment and t.environment.config
            ],
            verifies=True,
            libraries=(*VERIFIERS, *TEXT, *TORCH, "datasets", "lm_eval"),
        )

    def job(self, node: Node) -> dict[str, Any]:
        """Which of the inputs are evaluated, which of them holds the base, and what is compared with what."""
        labels = _label_of(node)
        maker = node.recipe.base_maker
        return {
            "checkpoints": checkpoints(node),
            "base_in": labels.get(maker) if maker else None,
            "differences": differences(node),
            "guided": [asdict(each) for each in guided(node)],
        }


def _label_of(node: Node) -> dict[str, str]:
    return {name: label for label, name in node.labels.items()}


def checkpoints(node: Node) -> list[str]:
    """Labels of the models that a stage evaluates, in order."""
    labels = _label_of(node)
    return [labels[name] for name in node.named("models")]


def differences(node: Node) -> list[list[str]]:
    """[before, after] labels: every evaluated model against the nearest evaluated ones that it was made from, then what guidance adds."""
    wanted = node.named("models")
    labels = _label_of(node)
    pairs = []
    for name in wanted:
        nearest, waiting, passed = [], [] if name == BASE else list(node.recipe.node(name).parents), set()
        while waiting:
            parent = waiting.pop(0)
            if parent in passed:
                continue
            passed.add(parent)
            if parent in wanted:
                nearest.append(parent)
            elif parent != BASE:
                waiting += node.recipe.node(parent).parents
        pairs += [[labels[parent], labels[name]] for parent in nearest]
    return pairs + [[each.model, each.name] for each in guided(node)]


def guided(node: Node) -> list[Guided]:
    """The guided columns of a stage: every weight, for every evaluated model that was made from the base."""
    guidance: GuidedColumns | None = node.settings.guidance
    wanted = node.named("models")
    if guidance is None or guidance.base not in wanted:
        return []
    labels = _label_of(node)
    return [
        Guided(f"{labels[name]}-{suffix}", suffix, labels[name], labels[guidance.base], weight)
        for name in wanted
        if name != BASE and guidance.base in node.recipe.node(name).made_from
        for suffix, weight in guidance.suffixes.items()
    ]


KIND = EvaluateKind()
