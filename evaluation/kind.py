"""Evaluation as a kind of stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar

from evaluation import benchmark_files, generation, named_files
from pipelines import environments, verifiers
from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.base.labels import numbered
from pipelines.recipe import search_models
from pipelines.recipe.compaction import check_evaluated
from pipelines.recipe.graph import endpoints
from pipelines.recipe.guidance import GuidedColumns
from pipelines.recipe.players import check_evaluated_games
from pipelines.recipe.resolve import resolve
from pipelines.recipe.settings import CHECKPOINTS, Evaluate
from pipelines.recipe.stage_checks import base_files, model_settings
from pipelines.recipe.stage_kind import (
    BASE,
    MODEL,
    REWARD_MODEL,
    SCORES,
    TEXT,
    TORCH,
    VERIFIERS,
    Kind,
    Node,
    Place,
    Port,
    Reads,
)

DECIDES = ("task", "size", "seed", "config")
"""Fields of an environment that decide on its problems."""


@dataclass(frozen=True)
class Column:
    """A column of a model that answers otherwise than alone, in the labels of the artifact."""

    name: str
    suffix: str
    """What its name has beside the model's."""
    model: str


@dataclass(frozen=True)
class Guided(Column):
    """Of a model guided away from another."""

    base: str
    weight: float


@dataclass(frozen=True)
class Searched(Column):
    """Of a model whose answers are searched for."""

    strategy: int
    """Index in the list."""
    scorer: str | None
    """Label of the stage whose reward model scores."""


class EvaluateKind(Kind):
    """Benchmarks for models of the graph, and paired differences along its edges."""

    name, settings, module, makes = "evaluate", Evaluate, "evaluation", SCORES
    ports: ClassVar[dict[str, Port]] = {"models": Port((MODEL,), many=True, endpoint=True)}
    benchmark_texts = "evaluation.documents:questions"
    link_takes = (REWARD_MODEL,)

    def links(self, settings: Evaluate) -> dict[str, str]:
        """The reward models that strategies of search score with."""
        return search_models.links(settings.search or [])

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

    def link_fields(self, fields: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """The base of guidance, and the reward models of search."""
        guidance = fields.get("guidance")
        bases = [(guidance, "base")] if isinstance(guidance, dict) and guidance.get("base") is not None else []
        return bases + list(search_models.link_fields(fields.get("search")))

    def shown(self, node: Node) -> dict[str, str]:
        """Also the guided and the searched columns."""
        names = node.labels
        endpoints = {each.name: each.name for each in node.settings.models}
        return endpoints | names | {each.name: f"{names[each.model]}-{each.suffix}" for each in columns(node)}

    def check(self, node: Node) -> None:
        """Named stages are listed under `models`; guidance goes between two of them, the one made from the other."""
        if node.recipe.stages and node.settings.checkpoints != list(CHECKPOINTS):
            raise RecipeError(
                "evaluate.checkpoints", f"is about plain sections; list the stages under {node.name}.models."
            )
        check_evaluated(node.settings.tasks)
        check_evaluated_games(node.settings.tasks)
        if node.settings.processes > 1 and not node.named("models"):
            raise RecipeError(
                "evaluate.processes",
                "endpoints alone are evaluated, which compute no model here",
                "Leave it out; `concurrency` of a model says how many requests are under way.",
            )
        if node.settings.sampler is not None and not node.named("models"):
            raise RecipeError(
                "evaluate.sampler", "endpoints alone are evaluated, which decode for themselves", "Leave it out."
            )
        taken = {*node.labels, *node.recipe.graph, BASE, *(each.name for each in columns(node))}
        for place, each in endpoints(node, "models"):
            if each.name in taken:
                raise RecipeError(
                    f"evaluate.models.{place}.label", f"{each.name} is the name of another column", "Choose one."
                )
            for task in node.settings.tasks:
                if benchmark_files.asks_likelihoods(task.asks, node.settings.include):
                    raise RecipeError(
                        f"evaluate.models.{place}",
                        f"{task.name} {benchmark_files.NEEDS_LIKELIHOODS}",
                        "Evaluate it in a stage without endpoints.",
                    )
        _check_decoding(node.settings)
        _check_files(node.settings)
        for task in node.settings.tasks:
            if fault := generation.fault(task.sampling):
                raise RecipeError(problems=[fault.inside(f"evaluate.tasks.{task.name}.sampling")])
            if (task.samples or 1) > 1 and task.sampling.get("temperature") == 0:
                raise RecipeError(
                    f"evaluate.tasks.{task.name}.samples",
                    f"at temperature 0 all {task.samples} answers to a question are equal",
                    "Set samples: 1, or a temperature above 0.",
                )
        if node.settings.guidance is None:
            return
        base, models = node.settings.guidance.base, node.named("models")
        if base not in models:
            raise RecipeError(
                "evaluate.guidance.base",
                f"{base[:80]} is not evaluated here",
                f"{did_you_mean(base[:80], models)} Guidance goes from one of the evaluated models to those that were made from it.",
            )
        if not guided(node):
            raise RecipeError(
                "evaluate.guidance.base",
                f"none of the evaluated models was made from {base}",
                "Name the one that the others start from.",
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
        names, files = search_models.read_models(evaluate.search or [], "evaluate", listed=True)
        in_key["evaluate", "include"] = None
        named, in_key_files = _named_files(evaluate)
        return Reads(
            {"evaluate": resolve(evaluate), "model": model},
            in_key=in_key | names | in_key_files,
            files=named,
            models=base_files(node) | files,
            benchmarks=[([t.asks for t in evaluate.tasks], evaluate.include)],
            environment_problems=[
                [task["limit"], *(task["environment"][name] for name in DECIDES)]
                for task in resolve(evaluate)["tasks"]
                if task["environment"]
            ]
            + [[t.asks, t.start_date, t.end_date] for t in evaluate.tasks if t.start_date or t.end_date],
            modules=["evaluation.scoring"],
            skip=_not_entered(evaluate),
            environments={t.environment.task for t in evaluate.tasks if t.environment is not None},
            environment_settings=[
                t.environment.config for t in evaluate.tasks if t.environment and t.environment.config
            ],
            verifies=True,
            verifiers=_verifiers(evaluate),
            libraries=(*VERIFIERS, *TEXT, *TORCH, "datasets", "lm_eval", *_detectors(evaluate)),
            computes=bool(node.named("models")),
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
            "searched": [asdict(each) for each in searched(node)],
        }


def _detectors(settings: Evaluate) -> tuple[str, ...]:
    """What detects the languages that IFEval asks for."""
    return ("langdetect",) if any(task.asks == "ifeval" for task in settings.tasks) else ()


def _named_files(settings: Evaluate) -> tuple[dict[str, str], dict[Place, Any]]:
    """The files that tasks name, by their labels in the key, and what stands there instead of their paths."""
    files: dict[str, str] = {}
    in_key: dict[Place, Any] = {}
    for number, task in enumerate(settings.tasks):
        if task.data is not None:
            in_key["evaluate", "tasks", number, "data"] = "a local file"
            paths = named_files.files_of(task.asks, task.data)
            files |= {f"benchmark/{number}/{place}": str(path) for place, path in enumerate(paths)}
    return files, in_key


def _not_entered(settings: Evaluate) -> frozenset[str]:
    """Modules that a stage with these settings does not import."""
    used = {
        "evaluation.searching": settings.search is not None,
        "evaluation.endpoint": bool(settings.models),
        "pipelines.engine.server": settings.sampler is not None,
    }
    return frozenset(name for name, imported in used.items() if not imported)


def _verifiers(settings: Evaluate) -> frozenset[str] | None:
    """The verifiers that the tasks' problems name; None where they may name any."""
    named: set[str] = set()
    for task in settings.tasks:
        if task.environment is not None:
            declared: Iterable[str] | None = environments.verifiers_of(task.environment.task)
        else:
            declared = None if settings.include else benchmark_files.verifiers_of(task.asks)
            if task.asks in named_files.BENCHMARKS and not settings.include:
                declared = named_files.BENCHMARKS[task.asks].verifiers
        if declared is None:
            return None
        named.update(declared)
    return None if named & {*verifiers.COMPOUND} else frozenset(named)


def _check_decoding(settings: Evaluate) -> None:
    """What guidance and search ask of the tasks."""
    strategies = settings.search or []
    search_models.check(strategies, "evaluate.search")
    several = [each.suffix for each in strategies if each.n > 1]
    weights = settings.guidance.suffixes if settings.guidance is not None else {}
    for name in (each.suffix for each in strategies):
        if name in weights:
            raise RecipeError(
                "evaluate.search.label", f"{name} is the name of a weight's column", "Choose another label."
            )
    for task in settings.tasks:
        unknown = generation.unknown(task.sampling)
        if unknown and (strategies or settings.guidance is not None or settings.sampler is not None):
            raise RecipeError(
                f"evaluate.tasks.{task.name}.sampling.{unknown[0]}",
                "is not known to our sampler, which alone decodes with guidance, searches and asks servers",
                f"Leave it out; known are {', '.join(sorted(generation.KNOWN))}.",
            )
        if several and task.environment is not None:
            raise RecipeError(
                "evaluate.search",
                f"{task.name} plays episodes, and a search answers questions",
                "Evaluate it in a stage of its own.",
            )
        if several and (task.sampling.get("do_sample") is False or task.sampling.get("temperature") == 0):
            raise RecipeError(
                f"evaluate.tasks.{task.name}.sampling",
                f"is greedy, so all candidates of {several[0]} would be equal",
                "Give it a temperature above 0.",
            )


def _check_files(settings: Evaluate) -> None:
    """What tasks name is what their benchmarks read."""
    for number, task in enumerate(settings.tasks):
        dated = task.start_date is not None or task.end_date is not None
        refused = named_files.refusal(task.asks, data=task.data, dated=dated) if task.environment is None else None
        if refused is not None:
            field, problem, fix = refused
            raise RecipeError(f"evaluate.tasks.{number}.{field}", problem, fix)


def _label_of(node: Node) -> dict[str, str]:
    return {name: label for label, name in node.labels.items()}


def checkpoints(node: Node) -> list[str]:
    """Labels of the models that a stage evaluates, in order."""
    labels = _label_of(node)
    return [labels[name] for name in node.named("models")]


def differences(node: Node) -> list[list[str]]:
    """[before, after] labels: every evaluated model against the nearest evaluated ones that it was made from, then models against their own
    columns of guidance and search."""
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
    return pairs + [[each.model, each.name] for each in columns(node)]


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


def columns(node: Node) -> list[Column]:
    """The columns of a stage beside those of its models alone."""
    return [*guided(node), *searched(node)]


def searched(node: Node) -> list[Searched]:
    """The searched columns of a stage: every strategy, for every evaluated model."""
    strategies, labels = node.settings.search or [], _label_of(node)
    scorers = search_models.links(strategies)
    return [
        Searched(
            f"{labels[name]}-{each.suffix}", each.suffix, labels[name], number, label if label in scorers else None
        )
        for name in node.named("models")
        for number, each in enumerate(strategies)
        for label in [f"{search_models.LABEL}.{number}"]
    ]


KIND = EvaluateKind()
