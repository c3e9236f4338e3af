"""Curation as a kind of stage."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, ClassVar

from pipelines.base import plugins
from pipelines.base.errors import DataError, RecipeError, did_you_mean
from pipelines.recipe.model_path import PATHS, is_stage_name
from pipelines.recipe.resolve import resolve
from pipelines.recipe.server import Dask
from pipelines.recipe.settings import Curate, Source
from pipelines.recipe.source import OF_ROWS, SELF_SUPERVISED
from pipelines.recipe.stage_checks import (
    environment_settings,
    part_reads,
    plays_episodes,
    processes,
    tokenizer_settings,
    verifiers_used,
)
from pipelines.recipe.stage_kind import (
    DATA,
    MODEL,
    SAMPLES,
    TEXT,
    TORCH,
    VERIFIERS,
    Kind,
    ModelFiles,
    Node,
    Place,
    Port,
    Reads,
    kind_named,
)

SEGMENTS = "segments"
"""The selection whose pairs are of parts of episodes."""
PREFERRED = "preferred"
"""The selection of pairs that a judge decided."""
STEPS = "steps"
"""The selection of labelled steps, which are those of completions or the turns of episodes."""
PROMPTS = "prompts"
"""The selection of new prompts."""
SOLVER = "difficulty.model"
"""Label of the input of the model that difficulty is measured with, where it is a stage."""
OF_DIFFICULTY = frozenset({"pipelines.curate.difficulty", "pipelines.engine.ranks"})
"""Modules that a stage without it does not import."""


class CurateKind(Kind):
    """Sources to data with splits."""

    name, settings, module, makes = "curate", Curate, "pipelines.curate", DATA
    ports: ClassVar[dict[str, Port]] = {}
    gpu = False
    processes_field = "difficulty.processes"

    def takes(self, settings: Curate, label: str) -> tuple[str, ...]:
        """A model where one solves the problems, else samples."""
        return (MODEL,) if label == SOLVER else (SAMPLES,)

    def link_hint(self, label: str) -> str:
        """How the paths and hub names of models are told from stages."""
        return PATHS if label == SOLVER else ""

    def links(self, settings: Curate) -> dict[str, str]:
        """Sources that are stages, and the model that difficulty is measured with where it is one."""
        sources = {stage_label(n): str(s.path) for n, s in enumerate(settings.sources) if s.kind == "stage"}
        solver = _solver(settings)
        return sources if solver is None else {**sources, SOLVER: solver}

    def link_fields(self, fields: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """Where they are written."""
        listed, difficulty = fields.get("sources"), fields.get("difficulty")
        listed = listed if isinstance(listed, list) else []
        places = [(s, "path") for s in listed if isinstance(s, dict) and s.get("kind") == "stage" and "path" in s]
        if isinstance(difficulty, dict):
            model = difficulty.get("model")
            places += [(difficulty, "model")] if isinstance(model, str) and is_stage_name(model) else []
        return places

    def reads(self, node: Node) -> Reads:
        """Sources, the tokenizer, and the benchmarks that the recipe's evaluations will ask."""
        curate: Curate = node.settings
        model = resolve(node.recipe.model)
        used = tokenizer_settings(node)
        if curate.difficulty is not None:
            used |= {name: model[name] for name in ("dtype", "attention")}
        if node.recipe.model.fresh is not None:
            used["tokenizer"] = model["tokenizer"]
        settings: dict[str, Any] = {"curate": resolve(curate), "model": used}
        made_in = {str(s.task) for s in curate.sources if s.kind == "environment"}
        made_with = [
            *(s.config for s in curate.sources if s.kind == "environment" and s.config),
            *({"corpus": s.corpus} for s in curate.sources if s.corpus),
            *environment_settings(node),
        ]
        reads = Reads(
            settings,
            **part_reads((SELF_SUPERVISED, s.self_supervised) for s in curate.sources if s.self_supervised),
            models={"model": ModelFiles(node.recipe.model.path, ("model", "path"), weights=False)},
            skip=_not_entered(curate),
            environments=made_in.copy(),
            environment_settings=made_with.copy(),
            rows_from=made_in,
            rows_settings=made_with,
            rows_name_environments=any(s.kind in OF_ROWS for s in curate.sources),
            verifies=True,
            verifiers=verifiers_used(node),
            libraries=(*VERIFIERS, *TEXT, "datasets", "xxhash"),
            computes=curate.difficulty is not None,
        )
        for number, source in enumerate(curate.sources):
            if source.kind in OF_ROWS:
                place: Place = ("curate", "sources", number, "path")
                reads.sources[f"sources.{number}"] = (source, place)
            elif source.kind == "stage":
                reads.in_key["curate", "sources", number, "path"] = None
        if curate.difficulty is not None:
            place = ("curate", "difficulty", "model")
            if _solver(curate) is not None:
                reads.in_key[place] = None
            else:
                reads.models["difficulty"] = ModelFiles(curate.difficulty.model, place)
            reads.libraries += TORCH
        asking = _asking(node)
        for other in asking:
            asked = other.kind.reads(other)
            reads.benchmarks += asked.benchmarks
            reads.files |= asked.files
            reads.environment_problems += asked.environment_problems
            reads.environments |= asked.environments
            reads.environment_settings += asked.environment_settings
            reads.modules.append(str(other.kind.benchmark_texts).partition(":")[0])
        if asking:
            names: list[Any] = sorted({name for listed, _ in reads.benchmarks for name in listed})
            names += [json.dumps(problems, sort_keys=True) for problems in reads.environment_problems]
            settings["decontaminate_against"] = [*names, *dict.fromkeys(include for _, include in reads.benchmarks)]
            reads.in_key["decontaminate_against",] = names
            reads.libraries += ("lm_eval",)
        return reads

    def job(self, node: Node) -> dict[str, Any]:
        """Where the questions of the benchmarks come from, and for each source the label of its stage, None where it is none; the
        label of the model that difficulty is measured with, where it is a stage; the files that the key holds of each address; how many
        processes work."""
        texts = [{"function": n.kind.benchmark_texts, "settings": resolve(n.settings)} for n in _asking(node)]
        listed: list[Source] = node.settings.sources
        labels = [stage_label(n) if source.kind == "stage" else None for n, source in enumerate(listed)]
        solver = {"solver": SOLVER} if _solver(node.settings) is not None else {}
        away = [source for source in listed if source.elsewhere]
        return {
            **({"benchmark_texts": texts} if texts else {}),
            **({"samples": labels} if any(labels) else {}),
            **solver,
            **({"remote": _pinned(away)} if away else {}),
            "processes": processes(node),
        }

    def imports(self, node: Node) -> list[str]:
        """Also the generators of problems that sources name."""
        generators = {"reasoning_gym"} & {source.kind for source in node.settings.sources}
        return [*super().imports(node), *generators]

    def check(self, node: Node) -> None:
        """Files are there, verifiers exist, and so does Dask where it is named."""
        if node.settings.dask is not None:
            _check_dask(node.settings.dask)
        for number, source in enumerate(node.settings.sources):
            field = f"curate.sources.{number}"
            if source.kind == "file" and not source.elsewhere:
                _check_files(str(source.path), field)
            if source.image_folder is not None and not Path(source.image_folder).expanduser().is_dir():
                raise RecipeError(f"{field}.image_folder", f"no folder at {source.image_folder}.")
            if source.self_supervised is not None:
                _check_self_supervised(source.self_supervised, field)
            if source.select is not None:
                _check_selection(node, source, f"{field}.select")
            if source.verifier is not None:
                from pipelines import verifiers

                if source.verifier not in verifiers.known():
                    hint = did_you_mean(source.verifier, verifiers.known())
                    raise RecipeError(f"{field}.verifier", f"unknown verifier {source.verifier!r}", hint)


def _check_dask(dask: Dask) -> None:
    if importlib.util.find_spec("distributed") is None:
        raise RecipeError("curate.dask", "Dask is not installed", "pip install distributed, or leave the field out.")
    if dask.address is not None and re.fullmatch(r"(tcp|tls)://\[?[^\[\]]+\]?:\d+", dask.address) is None:
        raise RecipeError(
            "curate.dask.address", f"{dask.address!r} is no address", "Write tcp://HOST:PORT or tls://HOST:PORT."
        )


def _check_self_supervised(name: str, field: str) -> None:
    known = plugins.names(SELF_SUPERVISED)
    if name not in known:
        raise RecipeError(
            f"{field}.self_supervised", f"no problems called {name!r} are made of texts", did_you_mean(name, known)
        )


def _check_selection(node: Node, source: Source, field: str) -> None:
    """Parts are made of episodes, other records of single answers, as the stage that is read samples them."""
    assert source.select is not None
    sampled = node.recipe.node(str(source.path))
    lacking = {
        name: fix
        for name, (there, fix) in {
            "reward_model": (bool(sampled.named("reward_model")), "reward_model: STAGE"),
            "judge": (sampled.settings.self_judge is not None, "self_judge: {}"),
            "log_ratio": (sampled.settings.reference is not None, "reference: STAGE"),
        }.items()
        if not there
    }
    for value in (source.select.by, *(factor.name for factor in source.select.factors)):
        if value in lacking:
            raise RecipeError(
                field,
                f"{value} is a value of completions that {source.path} does not give them",
                f"Set {lacking[value]} in {source.path}.",
            )
    if getattr(sampled.settings, "new_prompts", None) is not None:
        if source.select.kind != PROMPTS:
            problem = f"{source.path} writes new prompts, and {source.select.kind} is about answers"
            raise RecipeError(field, problem, "Choose select: prompts.")
    elif source.select.kind == PROMPTS:
        fix = "Give it `new_prompts: {}`, or choose another selection than prompts."
        raise RecipeError(field, f"{source.path} answers problems", fix)
    plays = plays_episodes(sampled)
    if source.select.kind == STEPS and not plays and getattr(sampled.settings, "step_labels", None) is None:
        raise RecipeError(
            field,
            f"{source.path} labels no steps",
            "Name a sample stage with `step_labels` that reads it, or one that plays episodes.",
        )
    if source.select.discount < 1 and source.select.kind == STEPS and not plays:
        raise RecipeError(
            f"{field}.discount",
            f"it is of the turns of episodes, and {source.path} labels completions",
            "Leave it out.",
        )
    if source.select.importance is not None and source.select.kind == PREFERRED and not plays:
        raise RecipeError(
            f"{field}.importance",
            f"it is of the turns of episodes, and {source.path} compares single answers",
            "Leave it out.",
        )
    if source.select.kind == SEGMENTS and not plays:
        raise RecipeError(
            field,
            f"segments are parts of episodes, and {source.path} samples single answers",
            "Give it `episodes: {max_turns: 10}`, or choose another selection.",
        )
    if source.select.kind == PREFERRED and getattr(sampled.settings, "comparisons", None) is None:
        raise RecipeError(
            field, f"{source.path} compares nothing", "Name a sample stage with `comparisons` that reads it."
        )
    select = source.select
    of_answers = select.kind not in (SEGMENTS, PREFERRED, STEPS, "pass_rate", "best", "correct", "shortest_correct")
    if plays and (of_answers or select.truncate is not None or select.efforts):
        fix = "Choose correct without truncate and efforts, segments, preferred, steps or pass_rate."
        raise RecipeError(field, f"{source.path} plays episodes, and {select.kind} is about single answers", fix)


def _not_entered(curate: Curate) -> frozenset[str]:
    """Modules that a stage with these settings does not import."""
    if curate.difficulty is None:
        return OF_DIFFICULTY
    return frozenset() if curate.difficulty.sampler is not None else frozenset({"pipelines.engine.server"})


def _solver(settings: Curate) -> str | None:
    """The stage whose model difficulty is measured with; None where a path names it, or nothing is measured."""
    model = settings.difficulty.model if settings.difficulty is not None else None
    return model if model is not None and is_stage_name(model) else None


def stage_label(number: int) -> str:
    """Label of the input of a source that is a stage."""
    return f"sources.{number}.path"


def _asking(node: Node) -> list[Node]:
    """The stages of the recipe whose questions the data must not hold."""
    if node.settings.decontaminate is None:
        return []
    return [other for other in node.recipe.nodes() if kind_named(other.stage.kind).benchmark_texts is not None]


def _check_files(path: str, field: str) -> None:
    from pipelines.data.files import check_readable, data_files

    paths = data_files(path)
    if not paths:
        raise RecipeError(f"{field}.path", f"no file at {path}.")
    try:
        for each in paths:
            check_readable(each)
    except DataError as error:
        raise RecipeError(problems=error.moved("curate.sources.path", f"{field}.path").problems) from None


def _pinned(sources: list[Source]) -> dict[str, Any]:
    """Address → the files that are there now, of sources that lie elsewhere."""
    from pipelines.recipe import fetched  # most recipes have files of their own

    return {fetched.address(source): fetched.pinned(source) for source in sources}


KIND = CurateKind()
