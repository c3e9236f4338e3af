"""Before the first stage: what is to be searched is there, the library that searches it, and what else environments say they need."""

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
    """Corpora of a stage's settings that cannot be searched, and settings that an environment refuses before it makes problems."""
    for field, settings in _places(node):
        for corpus in dict.fromkeys(corpora_of(settings)):
            from pipelines.tools import retrieval

            if problem := retrieval.refusal(corpus):
                yield problem.inside(field)
    for field, name, config in _named(node):
        yield from (problem.inside(field) for problem in environments.refusals(name, config))


def _places(node: Node) -> Iterator[tuple[str, Any]]:
    """(field, what may name corpora); an environment with a corpus of its own counts as naming it."""
    stage, settings = node.name, node.settings
    if isinstance(settings, Curate):
        for number, source in enumerate(settings.sources):
            field = f"{stage}.sources.{number}"
            if source.corpus is not None:
                yield f"{field}.corpus", {"corpus": source.corpus}
    elif isinstance(settings, Rlvr):
        for where, spec in terms_of(f"{stage}.reward", settings.reward):
            yield f"{where}.info", spec.get("info")
    for field, name, config in _named(node):
        own = environments.corpus_of(name)
        yield field, ({"corpus": own} if own else {}) | config


def _named(node: Node) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The environments that a stage's settings name: field, name, settings."""
    stage, settings = node.name, node.settings
    if isinstance(settings, Curate):
        for number, source in enumerate(settings.sources):
            if source.kind == "environment":
                yield f"{stage}.sources.{number}.config", str(source.task), source.config
    elif isinstance(settings, Evaluate):
        for number, task in enumerate(settings.tasks):
            if task.environment is not None:
                yield f"{stage}.tasks.{number}.environment.config", task.environment.task, task.environment.config
