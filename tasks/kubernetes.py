"""A stage as a Job of Kubernetes, on machines that mount the project folder.

A stage of several machines is an indexed Job with a headless Service, by which its pods find the first one. Everything is asked of
`kubectl`, with the user's own configuration and rights.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pipelines.base.errors import Problem
from pipelines.base.project import home
from pipelines.recipe.launch import Kubernetes, Launch, Resources
from tasks.named_jobs import SchedulerError, State, asked_of, bytes_of, command_of, folder_name, is_name, seconds_of
from tasks.process import LOG

ASK_S = 60.0
"""How long kubectl may take."""
REMOVE_S = 90
"""How long pods may take to end: they have half a minute between SIGTERM and SIGKILL."""
FOLDER, JOB = "whetstone/folder", "whetstone/job"
"""Labels: of all jobs of a work folder, and of all objects of a job."""
KEPT_S = 7 * 24 * 3600
"""How long Kubernetes keeps a job that has ended, for a pipeline that was killed meanwhile."""
LOST = frozenset(
    ("Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated", "UnexpectedAdmissionError")
)
"""Reasons of pods that Kubernetes has ended, not the stage."""
STUCK = frozenset(
    (
        *("CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull"),
        *("ImagePullBackOff", "InvalidImageName"),
    )
)
"""Why a container waits that will not start as it is asked for."""


class Cluster:
    """Jobs of one namespace for one stage; see `named_jobs.Scheduler`."""

    kind: Literal["kubernetes"] = "kubernetes"
    title = "Kubernetes"

    def __init__(self, launch: Launch, asked: Resources) -> None:
        assert launch.kubernetes is not None
        self.launch, self.asked, self.settings = launch, asked, launch.kubernetes

    def record(self) -> dict[str, object]:
        """Namespace and context."""
        return {"namespace": self.settings.namespace, "context": self.settings.context}

    def asks(self) -> list[str]:
        """All that its pods are made of."""
        return asked_of(self.launch, self.asked, self.settings)

    def submit(self, name: str, module: str, work: Path, environment: dict[str, str]) -> None:
        """See `named_jobs.Scheduler`."""
        text = json.dumps(manifest(self.launch, self.asked, name, module, work, environment))
        self._ask("create", "-f", "-", manifest=text)

    def state(self, name: str) -> State | None:
        """See `named_jobs.Scheduler`."""
        jobs = self._items("job", f"{JOB}={name}")
        if not jobs:
            return None
        status = jobs[0].get("status") or {}
        over = {each["type"]: each for each in status.get("conditions") or () if each.get("status") == "True"}
        if "Complete" in over:
            return State("succeeded")
        pods = self._items("pod", f"{JOB}={name}")
        if "Failed" in over:
            return _failure(over["Failed"], pods, self.asked.nodes)
        running = [pod for pod in pods if _status(pod).get("phase") in ("Running", "Succeeded")]
        if len(running) >= self.asked.nodes:
            return State("running")
        return self._waiting(name, pods)

    def _waiting(self, name: str, pods: list[dict[str, Any]]) -> State:
        for pod in pods:
            for container in _status(pod).get("containerStatuses") or ():
                waits = (container.get("state") or {}).get("waiting") or {}
                if waits.get("reason") in STUCK:
                    return State("waiting", f"{waits['reason']}: {waits.get('message', '')}".rstrip(": "), stuck=True)
            for each in _status(pod).get("conditions") or ():
                if each.get("type") == "PodScheduled" and each.get("status") == "False":
                    return State("waiting", str(each.get("message") or each.get("reason") or ""))
        return State("waiting", "" if pods else self._last_event(name))

    def _last_event(self, name: str) -> str:
        """What Kubernetes last said of a job without pods, such as that a quota is used up."""
        asked = f"involvedObject.name={name},involvedObject.kind=Job"
        try:
            events = self._listed("get", "events", "--field-selector", asked, "-o", "json")
        except SchedulerError:  # who may create jobs may be refused events
            return ""
        return str(events[-1].get("message", "")) if events else ""

    def remove(self, name: str) -> bool:
        """See `named_jobs.Scheduler`."""
        chosen = ("job,service", "-l", f"{JOB}={name}", "--ignore-not-found")
        try:
            self._ask("delete", *chosen, "--cascade=foreground", f"--timeout={REMOVE_S}s", patience_s=REMOVE_S + ASK_S)
        except SchedulerError:
            if self._items("job", f"{JOB}={name}"):
                return False
            raise
        return True

    def in_folder(self, work: Path) -> list[str]:
        """See `named_jobs.Scheduler`."""
        names = [str(job["metadata"]["name"]) for job in self._items("job", f"{FOLDER}={folder_name(work).strip('-')}")]
        return [name for name in names if is_name(name)]

    def _items(self, what: str, label: str) -> list[dict[str, Any]]:
        return self._listed("get", what, "-l", label, "-o", "json")

    def _listed(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects of a list.

        Raises:
            SchedulerError: as `_ask`, or kubectl prints none.
        """
        text = self._ask(*arguments)
        try:
            return list(json.loads(text)["items"])
        except (ValueError, KeyError, TypeError):
            raise SchedulerError(f"kubectl printed no list: {text[:200]!r}") from None

    def _ask(self, *arguments: str, manifest: str | None = None, patience_s: float = ASK_S) -> str:
        """What kubectl prints.

        Raises:
            SchedulerError: it could not be started, failed, or took too long.
        """
        settings = self.settings
        where = [f"--{name}={value}" for name, value in self.record().items() if value]
        try:
            return subprocess.run(
                ["kubectl", *where, *arguments], input=manifest or "", capture_output=True, text=True, timeout=patience_s,
                check=True,
            ).stdout  # fmt: skip
        except subprocess.CalledProcessError as error:
            text = "; ".join(line for line in error.stderr.splitlines() if line.strip())
            raise SchedulerError(text or f"kubectl: exit code {error.returncode}") from None
        except subprocess.TimeoutExpired:
            raise SchedulerError(f"no answer in {patience_s:.0f} s (context {settings.context or 'as set'})") from None
        except OSError as error:
            raise SchedulerError(str(error)) from None

    def refusal(self, module: str) -> str:
        """What Kubernetes has against a job of this stage; empty where it would take it."""
        name = folder_name(home()) + "0" * 12
        text = json.dumps(manifest(self.launch, self.asked, name, module, home(), {}))
        try:
            self._ask("create", "--dry-run=server", "-f", "-", manifest=text)
        except SchedulerError as error:
            return str(error)
        return ""


def recorded(body: dict[str, Any]) -> Cluster:
    """The cluster of a record, to end what an earlier pipeline has launched there."""
    settings = Kubernetes(
        image="-", claim="-", mount="/-", namespace=body.get("namespace"), context=body.get("context")
    )
    asked = Resources()
    return Cluster(Launch(kind="kubernetes", kubernetes=settings, stages={"stage": asked}), asked)


def _status(pod: dict[str, Any]) -> dict[str, Any]:
    return pod.get("status") or {}


def _failure(condition: dict[str, Any], pods: list[dict[str, Any]], nodes: int) -> State:
    """Why a job has failed: its limit, a machine, its memory, or the stage itself."""
    if condition.get("reason") == "DeadlineExceeded":
        return State("failed", ended_by="its time limit was reached", field="time", lost=True)
    for pod in pods:
        status = _status(pod)
        disrupted = [each for each in status.get("conditions") or () if each.get("type") == "DisruptionTarget"]
        if status.get("reason") in LOST or any(each.get("status") == "True" for each in disrupted):
            why = status.get("message") or (disrupted[0].get("message") if disrupted else "") or status.get("reason")
            return State("failed", ended_by=f"a pod was ended: {why}", lost=True)
    ends = [
        end
        for pod in pods
        for container in _status(pod).get("containerStatuses") or ()
        if (end := (container.get("state") or {}).get("terminated")) and end.get("exitCode")
    ]
    if any(end.get("reason") == "OOMKilled" for end in ends):
        return State("failed", code=-9, ended_by="out of memory (OOMKilled)", field="memory")
    if ends:
        first = min(ends, key=lambda end: str(end.get("finishedAt", "")))
        code = int(first["exitCode"])
        return State("failed", code=128 - code if code > 128 else code)
    return State(
        "failed",
        ended_by=condition.get("message") or condition.get("reason") or "no reason was told",
        lost=len(pods) < nodes,
    )


def manifest(
    launch: Launch, asked: Resources, name: str, module: str, work: Path, environment: dict[str, str]
) -> dict[str, Any]:
    """The objects of a job.

    Args:
        environment: variables of the stage beside the recipe's.
    """
    assert launch.kubernetes is not None
    labels = {FOLDER: name.rpartition("-")[0], JOB: name}
    meta = {"name": name, "labels": labels}
    spec: dict[str, Any] = {
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": KEPT_S,
        "template": {
            "metadata": {"labels": labels},
            "spec": merged(_pod(launch, asked, name, module, work, environment), launch.kubernetes.pod),
        },
    }
    if asked.time:
        spec["activeDeadlineSeconds"] = seconds_of(asked.time)
    items: list[dict[str, Any]] = []
    if asked.nodes > 1:
        spec |= {"completions": asked.nodes, "parallelism": asked.nodes, "completionMode": "Indexed"}
        # Pods are found before they are ready: they meet while they start.
        service = {"clusterIP": "None", "selector": {JOB: name}, "publishNotReadyAddresses": True}
        items.append({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": service})
    items.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec})
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _pod(
    launch: Launch, asked: Resources, name: str, module: str, work: Path, environment: dict[str, str]
) -> dict[str, Any]:
    settings = launch.kubernetes
    assert settings is not None
    stage = command_of(settings.python, launch, asked, module, work, '"$JOB_COMPLETION_INDEX"', f"{name}-0.{name}")
    script = "\n".join([*launch.setup, f"exec {stage} >> {shlex.quote(str(work / LOG))} 2>&1"])
    limits = {
        **({"cpu": str(asked.cpus)} if asked.cpus else {}),
        **({"memory": str(bytes_of(asked.memory))} if asked.memory else {}),
        **({settings.gpu: str(asked.gpus)} if asked.gpus else {}),
    }
    variables = {**environment, **settings.env}
    container: dict[str, Any] = {
        "name": "stage",
        "image": settings.image,
        "command": ["bash", "-c", script],
        "workingDir": os.getcwd(),
        "env": [{"name": each, "value": value} for each, value in sorted(variables.items())],
        "envFrom": [{"secretRef": {"name": each}} for each in settings.secrets],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [{"name": "project", "mountPath": settings.mount}, {"name": "shared", "mountPath": "/dev/shm"}],
    }
    shared = {"medium": "Memory", "sizeLimit": str(bytes_of(settings.shared_memory))}
    return {
        "restartPolicy": "Never",  # whether a stage is started again is the pipeline's to say
        **({"subdomain": name} if asked.nodes > 1 else {}),
        "containers": [container],
        "volumes": [
            {"name": "project", "persistentVolumeClaim": {"claimName": settings.claim}},
            {"name": "shared", "emptyDir": shared},
        ],
    }


def merged(value: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386).

    >>> merged({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": None, "e": 4}})
    {'a': 1, 'b': {'d': 3, 'e': 4}}
    """
    if not isinstance(patch, dict):
        return patch
    body = dict(value) if isinstance(value, dict) else {}
    for name, each in patch.items():
        if each is None:
            body.pop(name, None)
        else:
            body[name] = merged(body.get(name), each)
    return body


def problems(launch: Launch, modules: dict[str, str]) -> Iterator[Problem]:
    """What keeps this machine from handing in the jobs of stages.

    Args:
        modules: stage → what its job runs.
    """
    assert launch.kubernetes is not None
    mount = Path(launch.kubernetes.mount)
    for what, folder in (("the project folder", home()), ("the folder in which the run starts", Path.cwd())):
        if not folder.resolve().is_relative_to(mount):
            yield Problem(
                "launch.kubernetes.mount",
                f"{what} {folder.resolve()} is not below {mount}, so the pods would not see it",
                "Mount the claim here at the same path, and set WHETSTONE_HOME to a folder below it.",
            )
            return
    if shutil.which("kubectl") is None:
        yield Problem("launch.kind", "there is no kubectl on PATH", "Install it, or run it where it is.")
        return
    for stage, module in modules.items():
        refusal = Cluster(launch, launch.stages[stage]).refusal(module)
        if refusal:
            yield Problem(
                f"launch.stages.{stage}", f"Kubernetes would refuse the job: {refusal}", "Change what it names."
            )
