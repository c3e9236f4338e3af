"""Where a stage runs if not on this machine: as a job of a cluster's scheduler."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.base.errors import Problem
from pipelines.base.files import read_object
from pipelines.recipe.read import Recipe
from pipelines.recipe.stage_checks import processes
from pipelines.recipe.stage_kind import Node
from tasks.launched import Launcher
from tasks.process import LAUNCHED, launched_before


def launcher_of(node: Node, work: Path, anew: bool) -> Launcher | None:
    """What runs a stage; None for this machine.

    Args:
        anew: what an earlier pipeline has launched in the work folder is ended, as for a stage that now runs elsewhere.

    Raises:
        StageFailed: it could not be ended.
    """
    launch = node.recipe.launch
    asked = None if launch is None else launch.stages.get(node.name)
    for kind in launched_before(work):
        if anew or asked is None or launch is None or kind != launch.kind:
            _end(kind, work, node.name)
    if launch is None or asked is None:
        return None
    if launch.kind == "slurm":
        from tasks.slurm import Slurm

        return Slurm(launch, node.name)
    from tasks import named_jobs as jobs

    return jobs.Named(_module(launch.kind).Cluster(launch, asked), launch, node.name)


def _module(kind: str) -> Any:
    """What knows a scheduler whose jobs have names."""
    return importlib.import_module(f"tasks.{kind}")


def _end(kind: str, work: Path, stage: str) -> None:
    """End what a launcher of a kind has running in a work folder."""
    if kind == "slurm":
        from tasks import slurm

        slurm.end_others(work, stage)
        return
    from tasks import named_jobs as jobs

    record = (read_object(work / LAUNCHED[kind], scheduler=dict) or {}).get("scheduler") or {}
    jobs.end_others(_module(kind).recorded(record), work, stage)
    (work / LAUNCHED[kind]).unlink(missing_ok=True)


def problems(recipe: Recipe, stages: list[str]) -> Iterator[Problem]:
    """What keeps this machine from handing in the jobs of stages."""
    launch = recipe.launch
    if launch is None:
        return
    if launch.kind == "slurm":
        from tasks import slurm

        yield from slurm.problems(launch, stages)
    elif launch.kind == "kubernetes":
        from tasks import kubernetes

        yield from kubernetes.problems(launch, {stage: recipe.node(stage).kind.module for stage in stages})
    elif launch.kind == "ray":
        from tasks import ray

        yield from ray.problems(launch)
    else:
        from tasks import skypilot

        yield from skypilot.problems()


def threads_of(node: Node) -> int | None:
    """CPU threads of each process of a stage: the recipe's, else its share of the cores that its job asks for; None: half the machine's."""
    launch, threads = node.recipe.launch, node.recipe.threads
    asked = launch.stages.get(node.name) if launch is not None else None
    if threads is not None or asked is None or asked.cpus is None:
        return threads
    return max(1, asked.cpus // processes(node))
