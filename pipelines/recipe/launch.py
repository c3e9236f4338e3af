"""The section `launch`: stages that run as jobs of a cluster's scheduler. None of it changes a result."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pipelines.contract.fields import ADDRESS, Label, Line, Settings, free

Memory = Annotated[str, Field(pattern=r"^\d+[KMGT]?$")]
Folder = Annotated[Line, Field(pattern=r"^/.*[^/]$")]
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
    """The job's limit as Slurm writes it: minutes, `"12:00:00"` or `2-00:00:00`, in quotes where there is a colon."""


class Kubernetes(Settings):
    """What jobs of Kubernetes are made of, which `kubectl` hands in. Every pod has the project folder, at the same path as here."""

    image: Line = free(...)
    """With Whetstone installed, such as that of `make image`."""
    claim: Line = free(...)
    """The persistent volume claim that holds the project folder, which all machines can write."""
    mount: Folder = free(...)
    """Where the claim is mounted in the pods, and here: the folder in which the project is, or above it."""
    namespace: Line | None = free(None)
    """Default: that of kubectl's context."""
    context: Line | None = free(None)
    """Of kubectl's configuration; default: its present one."""
    python: Line = free("python")
    """In the image."""
    env: dict[Label, Line] = free({})
    """Variables of the stage; nothing secret, since whoever may read the job sees them."""
    secrets: list[Line] = free([])
    """Secrets of the namespace whose entries are variables of the stage, such as keys of APIs."""
    gpu: Line = free("nvidia.com/gpu")
    """What the cluster calls a GPU."""
    shared_memory: Memory = free("8G")
    """Of `/dev/shm`, which counts as memory of the pod."""
    pod: dict[Label, Any] = free({})
    """More of the pod's specification, merged into it as a JSON merge patch, such as `nodeSelector`, `tolerations`, `securityContext`."""


class Ray(Settings):
    """The cluster of Ray whose jobs stages are. All its machines share the project folder, at the same path as here."""

    address: Annotated[Line, Field(pattern=ADDRESS)] = free("http://127.0.0.1:8265")
    """Of the cluster's dashboard, which takes jobs. It asks for the token in the environment variable RAY_AUTH_TOKEN where there is one."""
    python: Line = free("python")
    """On the cluster, with Whetstone and Ray installed."""
    env: dict[Label, Line] = free({})
    """Variables of the stage; nothing secret, since whoever may read the job sees them."""
    resources: dict[Label, Annotated[float, Field(gt=0)]] = free({})
    """Other resources that each machine must lend, by the cluster's names."""


class SkyPilot(Settings):
    """The task of SkyPilot that a stage is, which `sky jobs launch` hands in. Its machines have the project folder, at the same path."""

    infra: Line | None = free(None)
    """Where, as SkyPilot writes it, such as `k8s/lab`, `ssh/pool` or `aws/us-east-1`; default: wherever it finds machines."""
    gpu: Line | None = free(None)
    """The kind of GPU by SkyPilot's name, such as `H100`; required where a stage asks for GPUs."""
    python: Line = free("python")
    """On these machines, with Whetstone installed."""
    env: dict[Label, Line] = free({})
    """Variables of the stage; nothing secret, since whoever may read the job sees them."""
    task: dict[Label, Any] = free({})
    """More of the task's file, merged into it as a JSON merge patch, such as `volumes`, `setup` or `resources: {image_id: ...}`."""


class Launch(Settings):
    """Which stages run as jobs of Slurm, Kubernetes, Ray or SkyPilot, on machines that share this folder."""

    kind: Literal["slurm", "kubernetes", "ray", "skypilot"] = free("slurm")
    stages: dict[Label, Resources] = free(..., min_length=1)
    """Stage → what its job asks for; all others run on this machine."""
    kubernetes: Kubernetes | None = free(None)
    """Required with `kind: kubernetes`."""
    ray: Ray | None = free(None)
    """With `kind: ray`; default: a cluster whose dashboard is on this machine."""
    skypilot: SkyPilot | None = free(None)
    """With `kind: skypilot`."""
    partition: Line | None = free(None)
    """Of Slurm."""
    account: Line | None = free(None)
    """Of Slurm."""
    options: list[Line] = free([])
    """More options of sbatch, such as `--constraint=h100`."""
    setup: list[Line] = free([])
    """Lines of bash before the stage, such as `module load cuda`."""
    interface: Line | None = free(None)
    """The network interface that machines of one stage share, such as `ib0`, in pods mostly `eth0`; required for more than one machine."""
    port: int = free(29400, ge=1024, le=65535)
    """Of the first machine, where the processes of several machines meet."""
    requeue: int = free(0, ge=0, le=1000)
    """How often a job that reaches its time limit is queued again, lost machines included; it continues from its last commit."""
    poll_s: float = free(10.0, gt=0, le=600)
    """How often the scheduler is asked."""
