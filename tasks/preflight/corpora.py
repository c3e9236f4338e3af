"""Before the first stage: what is to be searched is there, and so is the library that searches it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines import environments
from pipelines.base.errors import Problem
from pipelines.recipe.settings import Curate, Evaluate, Rlvr
from pipelines.recipe.slots import terms_of
from pipelines.recipe.stage_kind import Node
from pipelines.tools import corpora_of


def problems(node: Node) -> Iterator[Problem]:
    """Corpora of a stage's settings that cannot be searched."""
    for field, settings in _places(node):
        for corpus in dict.fromkeys(corpora_of(settings)):
            from pipelines.tools import retrieval

            if problem := retrieval.refusal(corpus):
                yield problem.inside(field)


def _places(node: Node) -> Iterator[tuple[str, Any]]:
    """(field, what may name corpora); an environment with a corpus of its own counts as naming it."""
    stage, settings = node.name, node.settings
    if isinstance(settings, Curate):
        for number, source in enumerate(settings.sources):
            field = f"{stage}.sources.{number}"
            if source.corpus is not None:
                yield f"{field}.corpus", {"corpus": source.corpus}
            if source.kind == "environment":
                yield f"{field}.config", _config(str(source.task), source.config)
    elif isinstance(settings, Rlvr):
        for where, spec in terms_of(f"{stage}.reward", settings.reward):
            yield f"{where}.info", spec.get("info")
    elif isinstance(settings, Evaluate):
        for number, task in enumerate(settings.tasks):
            if task.environment is not None:
                field = f"{stage}.tasks.{number}.environment.config"
                yield field, _config(task.environment.task, task.environment.config)


def _config(task: str, config: dict[str, Any]) -> dict[str, Any]:
    own = environments.corpus_of(task)
    return ({"corpus": own} if own else {}) | config
