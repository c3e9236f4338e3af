"""A stage as a job of Ray, on machines that share the project folder, by the REST interface of the cluster's dashboard.

The job's entry point (`pipelines/stage/on_ray.py`) reserves the machines and starts the stage's processes there; Ray itself is needed on
the cluster alone.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipelines.base.errors import Problem
from pipelines.base.files import read_json
from pipelines.recipe.launch import Launch, Ray, Resources
from pipelines.stage.on_ray import LOST, STATE, TIMED_OUT
from tasks.named_jobs import SchedulerError, State, asked_of, bytes_of, command_of, folder_name, is_name, seconds_of

if TYPE_CHECKING:
    import httpx

ASK_S = 60.0
REMOVE_S = 60.0
POLL_S = 0.2
OVER = ("SUCCEEDED", "FAILED", "STOPPED")


class Cluster:
    """Jobs of one cluster for one stage; see `named_jobs.Scheduler`."""

    kind: Literal["ray"] = "ray"
    title = "Ray"

    def __init__(self, launch: Launch, asked: Resources) -> None:
        self.launch, self.asked, self.settings = launch, asked, launch.ray or Ray()

    def record(self) -> dict[str, object]:
        """The address."""
        return {"address": self.settings.address}

    def asks(self) -> list[str]:
        """All that its machines must have."""
        return asked_of(self.launch, self.asked, self.settings)

    def submit(self, name: str, module: str, work: Path, environment: dict[str, str]) -> None:
        """See `named_jobs.Scheduler`."""
        (work / STATE).unlink(missing_ok=True)
        body = {
            # Ray confuses a job with one of the same id that is just ending, so each start has an id of its own.
            "submission_id": f"{name}-{time.time_ns()}",
            "entrypoint": entry_point(self.launch, self.asked, module, work),
            "runtime_env": {"env_vars": {**environment, **self.settings.env}},
            "metadata": {"work": str(work)},
        }
        self._ask("POST", "", json=body)

    def state(self, name: str) -> State | None:
        """See `named_jobs.Scheduler`."""
        told = next(iter(self._starts(name)), None)
        if told is None:
            return None
        status, words, code = told.get("status"), str(told.get("message") or ""), told.get("driver_exit_code")
        if status == "SUCCEEDED":
            return State("succeeded")
        if status not in OVER:
            machines = read_json(Path((told.get("metadata") or {}).get("work", "/")) / STATE) or {}
            if status == "RUNNING" and machines.get("phase") == "running":
                return State("running", str(machines.get("words", "")))
            return State("waiting", str(machines.get("words", "")) or words)
        if code == TIMED_OUT:
            return State("failed", ended_by="its time limit was reached", field="time", lost=True)
        if code == LOST:
            return State("failed", ended_by="a machine was lost", lost=True)
        if isinstance(code, int) and code:
            return State("failed", code=128 - code if code > 128 else code)
        return State("failed", ended_by=words[:500] or f"it is {str(status).lower()}", lost=status == "FAILED")

    def remove(self, name: str) -> bool:
        """See `named_jobs.Scheduler`."""
        until = time.monotonic() + REMOVE_S
        left = self._starts(name)
        for job in left:
            if job.get("status") not in OVER:
                self._ask("POST", f"{job['submission_id']}/stop")
        while any(job.get("status") not in OVER for job in left):
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_S)
            left = self._starts(name)
        for job in left:
            self._ask("DELETE", job["submission_id"])
        return True

    def in_folder(self, work: Path) -> list[str]:
        """See `named_jobs.Scheduler`."""
        start = folder_name(work)
        names = {str(job["submission_id"]).rpartition("-")[0] for job in self._starts(start)}
        return sorted(name for name in names if is_name(name))

    def _starts(self, start: str) -> list[dict[str, Any]]:
        """The jobs whose ids start so, the newest first."""
        jobs = [job for job in self._ask("GET", "") or () if str(job.get("submission_id")).startswith(start)]
        return sorted(jobs, key=lambda job: str(job["submission_id"]), reverse=True)

    def _ask(self, method: str, path: str, **body: Any) -> Any:
        """What the dashboard answers; None where it knows no such job.

        Raises:
            SchedulerError: it does not answer, or refuses.
        """
        import httpx

        token = os.environ.get("RAY_AUTH_TOKEN")
        try:
            answer = httpx.request(
                method, f"{self.settings.address.rstrip('/')}/api/jobs/{path}", timeout=ASK_S, trust_env=False,
                headers={"Authorization": f"Bearer {token}"} if token else {}, **body,
            )  # fmt: skip
            if answer.status_code == 404 and path:
                return None
            if answer.is_error:
                raise SchedulerError(f"{self.settings.address}: {answer.status_code}: {_last_line(answer)}")
            return answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise SchedulerError(f"{self.settings.address}: {type(error).__name__}: {error}") from None


def _last_line(answer: httpx.Response) -> str:
    """What an error says at its end: Ray answers with a whole traceback."""
    lines = [line for line in answer.text.strip().splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def recorded(body: dict[str, Any]) -> Cluster:
    """The cluster of a record, to end what an earlier pipeline has launched there."""
    asked = Resources()
    return Cluster(Launch(kind="ray", ray=Ray(address=str(body.get("address"))), stages={"stage": asked}), asked)


def entry_point(launch: Launch, asked: Resources, module: str, work: Path) -> str:
    """The command that Ray runs on one of its machines."""
    settings = launch.ray or Ray()
    each = {
        "CPU": asked.cpus or 1,
        **({"GPU": asked.gpus} if asked.gpus else {}),
        **({"memory": bytes_of(asked.memory)} if asked.memory else {}),
        **settings.resources,
    }
    stage = command_of(settings.python, launch, asked, module, work, '"$WHETSTONE_NODE"', '"$WHETSTONE_FIRST"')
    words = [
        *shlex.split(settings.python), "-P", "-u", "-m", "pipelines.stage.on_ray", str(work), "--nodes", str(asked.nodes),
        "--each", json.dumps(each), "--folder", os.getcwd(),
        "--command", "\n".join([*launch.setup, f'exec {stage} --owner "$WHETSTONE_OWNER"']),
        *(["--limit", str(seconds_of(asked.time))] if asked.time else []),
    ]  # fmt: skip
    return shlex.join(words)


def problems(launch: Launch) -> Iterator[Problem]:
    """A cluster that does not take jobs."""
    try:
        Cluster(launch, Resources())._ask("GET", "")
    except SchedulerError as error:
        yield Problem(
            "launch.ray.address",
            f"no cluster of Ray answers there: {error}",
            "Start one by `ray start --head`, or name the address of its dashboard.",
        )
