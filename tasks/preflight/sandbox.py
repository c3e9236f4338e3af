"""Whether programs that a model writes can be confined: here, or on the server that a recipe names."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from evaluation import named_files, programs
from pipelines.base.errors import Problem, UserError
from pipelines.recipe.read import Recipe
from pipelines.recipe.settings import Evaluate, Rlvr
from pipelines.recipe.slots import terms_of
from pipelines.recipe.source import sources_of
from pipelines.recipe.stage_kind import Node
from pipelines.verifiers import SANDBOXED
from tasks import keys


def choose(recipe: Recipe) -> None:
    """Have this process ask the sandbox that the recipe names, where it asks one."""
    if recipe.sandbox != "auto" or "pipelines.sandbox.pool" in sys.modules:
        from pipelines.sandbox import pool

        sandbox = recipe.model_dump(include={"sandbox"})["sandbox"]
        pool.confine(sandbox if isinstance(sandbox, str) else sandbox | {"patience": ()})


def problems(recipe: Recipe, nodes: list[Node]) -> Iterator[Problem]:
    """What is wrong with the sandbox of stages that run programs, and with a server that the recipe names."""
    try:
        if not isinstance(recipe.sandbox, str):
            from pipelines.sandbox.remote import Remote

            Remote(**recipe.sandbox.model_dump(), patience=()).about()
        elif _runs_programs(recipe, nodes):
            from pipelines.sandbox import isolation

            isolation.best(recipe.sandbox == "limits_only")
    except UserError as error:
        yield from error.problems


def _runs_programs(recipe: Recipe, nodes: list[Node]) -> bool:
    """Whether a verifier or a method does."""
    verifiers = [source.verifier for n in recipe.nodes() for source in sources_of(n.settings)]
    rewards = [terms_of("", n.settings.reward) for n in recipe.nodes() if isinstance(n.settings, Rlvr)]
    verifiers += [spec.get("verifier") for terms in rewards for _, spec in terms]
    evaluated = [task.asks for n in nodes if isinstance(n.settings, Evaluate) for task in n.settings.tasks]
    verifiers += ["python" for name in evaluated if name in programs.TASKS]
    benchmarks = [named_files.BENCHMARKS[name] for name in evaluated if name in named_files.BENCHMARKS]
    verifiers += [name for benchmark in benchmarks for name in benchmark.verifiers]
    reads, walled = [keys.node_reads(recipe, node.name) for node in nodes], any(v in SANDBOXED for v in verifiers)
    return any((walled and each.verifies) or keys.source.runs_programs(each) for each in reads)
