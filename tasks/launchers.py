"""Where a stage runs if not on this machine: as a job of a cluster's scheduler."""

from __future__ import annotations

from pathlib import Path

from pipelines.recipe.stage_checks import processes
from pipelines.recipe.stage_kind import Node
from tasks import slurm
from tasks.launched import Launcher
from tasks.process import SCRIPT


def launcher_of(node: Node, work: Path, anew: bool) -> Launcher | None:
    """What runs a stage; None for this machine.

    Args:
        anew: what an earlier pipeline has launched in the work folder is ended, as for a stage that now runs on this machine.

    Raises:
        StageFailed: it could not be ended.
    """
    launch = node.recipe.launch
    here = launch is None or node.name not in launch.stages
    if (anew or here) and (work / SCRIPT).exists():
        slurm.end_others(work, node.name)
    return None if launch is None or here else slurm.Slurm(launch, node.name)


def threads_of(node: Node) -> int | None:
    """CPU threads of each process of a stage: the recipe's, else its share of the cores that its job asks for; None: half the machine's."""
    launch, threads = node.recipe.launch, node.recipe.threads
    asked = launch.stages.get(node.name) if launch is not None else None
    if threads is not None or asked is None or asked.cpus is None:
        return threads
    return max(1, asked.cpus // processes(node))
