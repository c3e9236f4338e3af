"""A stage as a managed job of SkyPilot, on machines that share the project folder: a rendered task file, handed in by `sky jobs launch`.

SkyPilot finds the machines and replaces those that are lost; the task that starts again there continues from the stage's last commit. It
keeps jobs that have ended and does not tell their exit codes, so each machine writes its own into the work folder, and a file there says
which jobs were taken note of.
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

import yaml

from pipelines.base.errors import Problem
from pipelines.base.files import read_json, write_atomic
from pipelines.recipe.launch import Launch, Resources, SkyPilot
from tasks.kubernetes import merged
from tasks.named_jobs import SchedulerError, State, asked_of, bytes_of, command_of, folder_name, is_name, seconds_of
from tasks.process import LOG

TASK, EXIT, TAKEN = "skypilot.yaml", "skypilot.exit", "skypilot.taken"
ASK_S = 300.0
"""How long a command of SkyPilot may take: it starts its own server first where that is not there."""
LAUNCH_S = 1800.0
"""How long handing a job in may take: the first one waits for the machine of SkyPilot's controller."""
WAITS = {
    "PENDING": "",
    "SUBMITTED": "",
    "STARTING": "machines are being started",
    "RECOVERING": "machines are being replaced",
}
OVER = (
    "SUCCEEDED",
    "CANCELLED",
    "FAILED",
    "FAILED_SETUP",
    "FAILED_PRECHECKS",
    "FAILED_NO_RESOURCE",
    "FAILED_CONTROLLER",
)
NO_JOBS = "No in-progress managed jobs"
"""What SkyPilot says where it has never had a job."""
TIMED_OUT = 124
"""Exit code of `timeout` where the time was over."""


class Cluster:
    """Managed jobs for one stage; see `named_jobs.Scheduler`."""

    kind: Literal["skypilot"] = "skypilot"
    title = "SkyPilot"

    def __init__(self, launch: Launch, asked: Resources) -> None:
        self.launch, self.asked, self.settings = launch, asked, launch.skypilot or SkyPilot()
        self._work: Path | None = None

    def record(self) -> dict[str, object]:
        """Nothing: which server of SkyPilot answers is the user's configuration."""
        return {}

    def asks(self) -> list[str]:
        """All that its machines must have."""
        return asked_of(self.launch, self.asked, self.settings)

    def submit(self, name: str, module: str, work: Path, environment: dict[str, str]) -> None:
        """See `named_jobs.Scheduler`."""
        self._work = work
        task = task_of(self.launch, self.asked, name, module, work, environment)
        write_atomic(work / TASK, rendered(task))
        _ask("launch", "--yes", "--detach-run", "--name", name, str(work / TASK), patience_s=LAUNCH_S)

    def state(self, name: str) -> State | None:
        """See `named_jobs.Scheduler`."""
        job = next((job for job in self._jobs() if job["job_name"] == name), None)
        if job is None:
            return None
        status, why = str(job.get("status")), str(job.get("failure_reason") or job.get("details") or "")
        if status == "SUCCEEDED":
            return State("succeeded")
        if status in WAITS:
            return State("waiting", WAITS[status] or why)
        if status not in OVER:
            return State("running")
        code = self._code(name) if status == "FAILED" else None
        if code == TIMED_OUT:
            return State("failed", ended_by="its time limit was reached", field="time", lost=True)
        if code:
            return State("failed", code=128 - code if code > 128 else code)
        words = f"{status.lower().replace('_', ' ')}: {why[:500]}".rstrip(": ")
        return State("failed", ended_by=words, lost=status == "FAILED_CONTROLLER")

    def remove(self, name: str) -> bool:
        """See `named_jobs.Scheduler`."""
        if any(job["job_name"] == name and job.get("status") not in OVER for job in self._jobs()):
            _ask("cancel", "--yes", "--name", name)
        left = [job for job in self._jobs() if job["job_name"] == name]
        if any(job.get("status") not in OVER for job in left):
            return False
        if left and self._work is not None:
            write_atomic(self._work / TAKEN, str(max(int(job["job_id"]) for job in left)))
        return True

    def in_folder(self, work: Path) -> list[str]:
        """See `named_jobs.Scheduler`."""
        self._work = work
        start = folder_name(work)
        names = {str(job["job_name"]) for job in self._jobs() if job["job_name"].startswith(start)}
        return sorted(name for name in names if is_name(name))

    def _jobs(self) -> list[dict[str, Any]]:
        """All jobs but those that have ended and were taken note of, the newest first."""
        text = _ask("queue", "--refresh", "--all", "--output", "json")
        try:
            jobs = (
                [] if NO_JOBS in text else [job for job in json.loads(text[text.index("[") :]) if job.get("job_name")]
            )
            jobs.sort(key=lambda job: int(job["job_id"]), reverse=True)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SchedulerError(f"sky printed no list of jobs: {text[:200]!r}") from None
        taken = read_json(self._work / TAKEN) if self._work is not None else None
        return [job for job in jobs if job.get("status") not in OVER or int(job["job_id"]) > int(taken or 0)]

    def _code(self, name: str) -> int | None:
        """The exit code of the machine of a job that ended first with an error."""
        written = sorted((self._work or Path()).glob(f"{EXIT}.*"), key=lambda path: path.stat().st_mtime_ns)
        ends = [path.read_text().split() for path in written]
        return next((int(end[1]) for end in ends if end[:1] == [name] and end[1] != "0"), None)


def recorded(body: dict[str, Any]) -> Cluster:
    """What ends what an earlier pipeline has launched."""
    asked = Resources()
    return Cluster(Launch(kind="skypilot", stages={"stage": asked}), asked)


def _ask(*arguments: str, patience_s: float = ASK_S) -> str:
    """What `sky jobs` prints.

    Raises:
        SchedulerError: it could not be started, failed, or took too long.
    """
    try:
        done = subprocess.run(
            ["sky", "jobs", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SchedulerError(f"no answer in {patience_s:.0f} s") from None
    except OSError as error:
        raise SchedulerError(str(error)) from None
    if done.returncode and NO_JOBS not in done.stdout + done.stderr:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise SchedulerError("; ".join(lines[-3:])[:500] or f"sky: exit code {done.returncode}")
    return done.stdout if not done.returncode else NO_JOBS


def task_of(
    launch: Launch, asked: Resources, name: str, module: str, work: Path, environment: dict[str, str]
) -> dict[str, Any]:
    """The task of a job, as its file holds it.

    Args:
        environment: variables of the stage beside the recipe's.
    """
    settings = launch.skypilot or SkyPilot()
    resources = {
        **({"infra": settings.infra} if settings.infra else {}),
        **({"accelerators": f"{settings.gpu}:{asked.gpus}"} if asked.gpus else {}),
        **({"cpus": f"{asked.cpus}+"} if asked.cpus else {}),
        **({"memory": f"{-(-bytes_of(asked.memory) // 2**30)}+"} if asked.memory else {}),
    }
    first = '"$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"'
    command = command_of(settings.python, launch, asked, module, work, '"$SKYPILOT_NODE_RANK"', first)
    stage = "\n".join([*launch.setup, f"exec {command}"])
    limit = f"timeout --kill-after=60 {seconds_of(asked.time)} " if asked.time else ""
    task = {
        "name": name,
        "num_nodes": asked.nodes,
        "resources": resources,
        "envs": {**environment, **settings.env},
        "run": RUN.format(
            folder=shlex.quote(os.getcwd()), exit=shlex.quote(str(work / EXIT)), log=shlex.quote(str(work / LOG)),
            command=f"{limit}bash -c {shlex.quote(stage)}", name=name,
        ),
    }  # fmt: skip
    return dict(merged(task, settings.task))


def rendered(task: dict[str, Any]) -> str:
    """A task's file, with scripts as blocks of lines."""
    return yaml.dump(task, Dumper=_Blocks, sort_keys=False, width=1000)


class _Blocks(yaml.SafeDumper):
    """Texts of several lines as blocks."""


_Blocks.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)

RUN = """\
cd {folder} || exit
rm -f {exit}."$SKYPILOT_NODE_RANK"
{command} >> {log} 2>&1
code=$?
echo {name} "$code" > {exit}."$SKYPILOT_NODE_RANK"
exit "$code"
"""


def problems() -> Iterator[Problem]:
    """What keeps this machine from handing in jobs."""
    if shutil.which("sky") is None:
        yield Problem(
            "launch.kind",
            "there is no sky on PATH",
            'Install it: pip install "skypilot[kubernetes]", or for another cloud.',
        )
        return
    try:
        _ask("queue", "--output", "json")
    except SchedulerError as error:
        yield Problem("launch.kind", f"SkyPilot does not answer: {error}", "Look at: sky api status; sky check.")
