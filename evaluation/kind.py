"""Evaluation as a kind of stage."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

from pipelines.errors import RecipeError
from pipelines.recipe.graph import Node, numbered
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

    def check(self, node: Node) -> None:
        """Named stages are listed under `models`."""
        if node.recipe.stages and node.settings.checkpoints != list(CHECKPOINTS):
            raise RecipeError("evaluate.checkpoints: is about plain sections; list the stages under evaluate.models.")

    def reads(self, node: Node) -> Reads:
        """Benchmarks, environments, and what the models are asked with."""
        evaluate: Evaluate = node.settings
        model, in_key = model_settings(node)
        labels, edges = checkpoints(node), differences(node)
        if node.recipe.stages:
            in_key["evaluate", "checkpoints"] = labels
        if edges != [list(pair) for pair in pairwise(labels)]:
            in_key["evaluate", "differences"] = edges
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
        labels = {name: label for label, name in node.labels.items()}
        maker = node.recipe.base_maker
        return {
            "checkpoints": checkpoints(node),
            "base_in": labels.get(maker) if maker else None,
            "differences": differences(node),
        }


def checkpoints(node: Node) -> list[str]:
    """Labels of the models that a stage evaluates, in order."""
    labels = {name: label for label, name in node.labels.items()}
    return [labels[name] for name in node.named("models")]


def differences(node: Node) -> list[list[str]]:
    """[before, after] labels: every evaluated model against the nearest evaluated ones that it was made from."""
    wanted = node.named("models")
    labels = {name: label for label, name in node.labels.items()}
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
    return pairs


KIND = EvaluateKind()
