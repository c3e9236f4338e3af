"""The section `launch`: stages that run as jobs of a cluster's scheduler."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipelines.contract.fields import Label, Line, Settings, free

Memory = Annotated[str, Field(pattern=r"^\d+[KMGT]?$")]
TimeLimit = Annotated[str, Field(pattern=r"^(\d+-\d+(:\d\d){0,2}|\d+(:\d\d){0,2})$")]


class Resources(Settings):
    """What the job of a stage asks for, of each machine. None of it changes a result."""

    nodes: int = free(1, ge=1, le=4096)
    """Machines; each has as many processes as the stage's `processes` says."""
    gpus: int = free(0, ge=0, le=64)
    cpus: int | None = free(None, ge=1, le=4096)
    """Cores, which the stage's processes share as threads unless the recipe has `threads`; default: what the scheduler gives."""
    memory: Memory | None = free(None)
    """Such as `200G`; default: what the scheduler gives."""
    time: TimeLimit | None = free(None)
    """The job's limit in Slurm's form: minutes, `"12:00:00"` or `2-00:00:00`, in quotes where there is a colon."""


class Launch(Settings):
    """Which stages run as jobs of Slurm, on machines that share this folder. None of it changes a result."""

    kind: Literal["slurm"] = free("slurm")
    stages: dict[Label, Resources] = free(..., min_length=1)
    """Stage → what its job asks for; all others run on this machine."""
    partition: Line | None = free(None)
    account: Line | None = free(None)
    options: list[Line] = free([])
    """More options of sbatch, such as `--constraint=h100`."""
    setup: list[Line] = free([])
    """Lines of bash before the stage, such as `module load cuda`."""
    interface: Line | None = free(None)
    """The network interface that machines of one stage share, such as `ib0`; required for more than one."""
    port: int = free(29400, ge=1024, le=65535)
    """Of the first machine, where the processes of several machines meet."""
    requeue: int = free(0, ge=0, le=1000)
    """How often a job that reaches its time limit is queued again, lost machines included; it continues from its last commit."""
    poll_s: float = free(10.0, gt=0, le=600)
    """How often the scheduler is asked."""
