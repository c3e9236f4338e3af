"""Stages as jobs of a scheduler that knows a job by a name which we give it, such as Kubernetes and Ray.

The name holds the work folder, what the stage shall do, and what the job asks for. So a pipeline that was killed finds its job again,
even where it was killed while it handed the job in, and never are there two that write to one folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from pipelines.base.errors import Problem
from pipelines.base.files import read_object, write_atomic
from pipelines.base.project import THREADS
from pipelines.contract.fields import Settings
from pipelines.recipe.launch import Launch, Resources
from pipelines.stage.process import METRICS
from tasks.launched import Ending, Job, log
from tasks.process import LAUNCHED, StageFailed

GRACE_S = 60.0
"""How long a file that another machine has written may be on its way, and how long a job may be unknown."""
STUCK_S = 300.0
"""How long a job that cannot start as it is asked for, such as for want of its image, is waited for."""
AGAIN = "Run it again: it continues from its last commit."
PASSED_ON = ("PYTHONFAULTHANDLER", "TOKENIZERS_PARALLELISM", "TQDM_DISABLE", "WHETSTONE_HOME", *THREADS)
"""Variables of the pipeline's environment that a stage on another machine has too."""
T = TypeVar("T")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def folder_name(work: Path) -> str:
    """How the names of a work folder's jobs begin."""
    return f"whetstone-{hashlib.sha256(str(work.resolve()).encode()).hexdigest()[:12]}-"


def name_of(work: Path, job: str, asks: list[str]) -> str:
    """The name of the job that does in a work folder what `job` says.

    Args:
        asks: all that the job asks for.
    """
    return f"{folder_name(work)}{hashlib.sha256(chr(10).join([job, *asks]).encode()).hexdigest()[:12]}"


def asked_of(launch: Launch, asked: Resources, settings: Settings) -> list[str]:
    """What a job asks for, of which each difference makes another job.

    Args:
        settings: of its scheduler.
    """
    own = [asked.model_dump_json(), settings.model_dump_json(), json.dumps(launch.setup)]
    return [*own, f"{launch.interface}:{launch.port}"]


def failed(stage: str, problem: str, fix: str) -> StageFailed:
    """A stage that a scheduler cannot run."""
    return StageFailed(problems=[Problem(f"launch.stages.{stage}", problem, fix)], exit_code=2)


def bytes_of(memory: str) -> int:
    """Bytes of a size as Slurm writes it: megabytes, or with a unit.

    >>> bytes_of("2G"), bytes_of("512")
    (2147483648, 536870912)
    """
    return int(memory) * UNITS["M"] if memory.isdigit() else int(memory[:-1]) * UNITS[memory[-1]]


def seconds_of(limit: str) -> int:
    """Seconds of a time limit as Slurm writes it.

    >>> seconds_of("90"), seconds_of("12:00:00"), seconds_of("2-00:30"), seconds_of("10:30")
    (5400, 43200, 174600, 630)
    """
    days, _, clock = limit.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if days:
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    hours, minutes, seconds = {1: [0, *parts, 0], 2: [0, *parts], 3: parts}[len(parts)]
    return (hours * 60 + minutes) * 60 + seconds


class SchedulerError(Exception):
    """A scheduler does not answer, or refuses; the text is what it said."""


@dataclass(frozen=True)
class State:
    """What a scheduler says of a job."""

    phase: Literal["waiting", "running", "succeeded", "failed"]
    words: str = ""
    """For the log."""
    code: int = 1
    """Of a job that failed: the exit code of its stage, -N where a signal N has killed it."""
    ended_by: str = ""
    """Why the scheduler has ended it; empty where the stage has ended by itself."""
    field: Literal["", "time", "memory"] = ""
    """Of what the job asks for, the one that was too little."""
    lost: bool = False
    """A job that failed would go on from its last commit: its machine is gone, it made room for another one, or its time was over."""
    stuck: bool = False
    """A job that waits cannot start as it is asked for."""


class Scheduler(Protocol):
    """Runs jobs that have names."""

    @property
    def kind(self) -> str:
        """As the recipe calls it."""

    @property
    def title(self) -> str:
        """As messages call it."""

    def record(self) -> dict[str, object]:
        """With what another pipeline reaches it again."""

    def asks(self) -> list[str]:
        """What its jobs ask for, of which each difference makes another job."""

    def submit(self, name: str, module: str, work: Path, environment: dict[str, str]) -> None:
        """Hand a job in that runs `python -m module WORK`.

        Raises:
            SchedulerError: it is refused.
        """

    def state(self, name: str) -> State | None:
        """Of a job; None where there is none of this name.

        Raises:
            SchedulerError: no answer.
        """

    def remove(self, name: str) -> bool:
        """End a job where it waits or runs, and forget it; whether it is gone.

        Raises:
            SchedulerError: no answer.
        """

    def in_folder(self, work: Path) -> list[str]:
        """Names of the jobs of a work folder, those that have ended among them.

        Raises:
            SchedulerError: no answer.
        """


class Named:
    """Launches one stage by a scheduler; see `launched.Launcher`."""

    def __init__(self, scheduler: Scheduler, launch: Launch, stage: str) -> None:
        self.scheduler, self.launch, self.stage = scheduler, launch, stage
        self._job: NamedJob | None = None

    @property
    def waited_s(self) -> float:
        """Seconds for which the job has waited for a machine."""
        return self._job.waited_s if self._job else 0.0

    def attach(self, work: Path, job: str) -> NamedJob | None:
        """See `launched.Launcher`.

        Raises:
            StageFailed: as `end_others`.
        """
        name = name_of(work, job, self.scheduler.asks())
        if not end_others(self.scheduler, work, self.stage, name):
            return None
        state = self._asked(lambda: self.scheduler.state(name))
        if state is None or state.phase == "failed" or (state.phase == "succeeded" and not (work / METRICS).exists()):
            self._asked(lambda: self.scheduler.remove(name))
            return None
        log.warning("%s: continues with %s, which was handed in before", self.stage, name)
        record = read_object(work / LAUNCHED[self.scheduler.kind], module=str, environment=dict, starts=int) or {}
        again = (record.get("module") or "", record.get("environment") or {})
        self._job = self._of(
            name, work, *again, record.get("starts") or sys.maxsize
        )  # without a record it is never handed in again
        return self._job

    def start(self, module: str, work: Path, environment: dict[str, str]) -> NamedJob:
        """Hand the job in.

        Raises:
            StageFailed: the scheduler refuses it.
        """
        work = work.resolve()
        job = (work / "job.json").read_text()
        passed_on = {name: environment[name] for name in PASSED_ON if name in environment}
        if json.loads(job).get("threads") is None:  # the machine's, which is another one
            passed_on = {name: value for name, value in passed_on.items() if name not in THREADS}
        name = name_of(work, job, self.scheduler.asks())
        self._job = self._of(name, work, module, passed_on, 0)
        try:
            self._job.submit()
        except SchedulerError as error:
            self._job.forget()  # what was refused may be there all the same, such as after a time-out
            fix = "Change what the job asks for, or leave the stage out of launch.stages to run it here."
            raise failed(self.stage, f"{self.scheduler.title} refuses the job: {error}", fix) from None
        except BaseException:  # the run is being stopped, and the job may have been handed in all the same
            self._job.cancel()
            raise
        log.warning("%s: handed to %s as %s", self.stage, self.scheduler.title, name)
        return self._job

    def _of(self, name: str, work: Path, module: str, environment: dict[str, str], starts: int) -> NamedJob:
        return NamedJob(self, name, work, module, environment, starts)

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except SchedulerError as error:
            raise _no_answer(self.scheduler, self.stage, error) from None


class NamedJob(Job):
    """A job that was handed in; see `launched.Launched`.

    Args:
        by: its launcher.
        name: the job's.
        module: what runs there, with the variables of `environment`.
        starts: how often it was handed in.
    """

    def __init__(self, by: Named, name: str, work: Path, module: str, environment: dict[str, str], starts: int) -> None:
        super().__init__(name, by.stage)
        self.by, self.work, self.starts = by, work, starts
        self.module, self.environment = module, environment
        self._since = 0.0
        self._phase = ""

    def submit(self) -> None:
        """Hand it in.

        Raises:
            SchedulerError: it is refused.
        """
        self.starts += 1
        record = {"module": self.module, "environment": self.environment, "starts": self.starts}
        write_atomic(
            self.work / LAUNCHED[self.by.scheduler.kind],
            json.dumps({**record, "scheduler": self.by.scheduler.record()}, indent=1),
        )
        self.by.scheduler.submit(self.name, self.module, self.work, self.environment)

    def poll(self) -> int | None:
        """Its exit code once it has one and will not run again."""
        now = time.monotonic()
        if self._code is None and now - self._asked >= self.by.launch.poll_s:
            if self._phase == "waiting":
                self.waited_s += now - self._asked
            self._asked = now
            try:
                self._take(self.by.scheduler.state(self.name))
            except SchedulerError as error:
                self.say(f"{self.by.scheduler.title} does not answer", str(error))
        return self._code

    def _take(self, state: State | None) -> None:
        """Act on what the scheduler says."""
        phase = state.phase if state is not None else "gone"
        if phase != self._phase or not (state is None or state.stuck or phase == "succeeded"):
            self._phase, self._since = phase, self._asked
        since = self._asked - self._since
        if state is None:
            if since >= GRACE_S:
                self._end(State("failed", ended_by="it is gone", lost=True))
        elif state.phase == "succeeded":
            if (self.work / METRICS).exists() or since >= GRACE_S:
                self._code = 0
                self.forget()  # the result is taken, once
        elif state.phase == "failed":
            self._end(state)
        else:
            self.say(state.phase, state.words)
            if state.stuck and since >= STUCK_S:
                self.forget()
                self._fail(State("failed", ended_by=f"it cannot start: {state.words}"))

    def _end(self, state: State) -> None:
        """It has failed, and is handed in again where it is worth it."""
        self.forget()
        if not state.lost or self.starts > self.by.launch.requeue:
            self._fail(state)
            return
        self.say(f"{state.ended_by}: handed in again, and continues from its last commit")
        self._phase = ""
        try:
            self.submit()
        except SchedulerError as error:
            self._fail(State("failed", ended_by=f"{state.ended_by}, and the job was refused then: {error}"))

    def _fail(self, state: State) -> None:
        self._code = state.code or 1
        if state.ended_by:
            field = f"launch.stages.{self.stage}" + (f".{state.field}" if state.field else "")
            first = {"time": "Raise it or set launch.requeue. ", "memory": "Raise it. "}.get(state.field, "")
            text = f"{self.by.scheduler.title} ended the job {self.name}: {state.ended_by}"
            self.ending = Ending(Problem(field, text, first + AGAIN), -state.code if state.code < 0 else None)

    def forget(self) -> None:
        """Have the scheduler forget what has ended."""
        try:
            self.by.scheduler.remove(self.name)
        except SchedulerError as error:
            log.info("%s: %s", self.stage, error)

    def cancel(self) -> None:
        """See `launched.Launched`."""
        if self._code is not None:
            return
        self._code = -signal.SIGTERM
        try:
            gone = self.by.scheduler.remove(self.name)
        except SchedulerError as error:
            log.warning("%s: %s", self.stage, error)
            gone = False
        if not gone:
            log.warning("%s: the job %s of %s may still run", self.stage, self.name, self.by.scheduler.title)


def end_others(scheduler: Scheduler, work: Path, stage: str, name: str = "") -> bool:
    """End the jobs of a work folder but the one of a name; whether there is that one.

    Raises:
        StageFailed: the scheduler does not answer, or does not end a job.
    """
    try:
        names = scheduler.in_folder(work)
        for each in names:
            if each != name and not scheduler.remove(each):
                raise failed(stage, f"the job {each} works in the same folder and does not end", "End it by hand.")
    except SchedulerError as error:
        raise _no_answer(scheduler, stage, error) from None
    return name in names


def _no_answer(scheduler: Scheduler, stage: str, error: SchedulerError) -> StageFailed:
    fix = f"Run it once it is there again; to run the stage here, delete the file {LAUNCHED[scheduler.kind]} of its work folder if no job "
    return failed(stage, f"{scheduler.title} does not answer: {error}", fix + "works on it any more.")


def command_of(python: str, launch: Launch, asked: Resources, module: str, work: Path, node: str, first: str) -> str:
    """The line of bash that runs a stage, or the part of it that one of several machines has.

    Args:
        node: this machine's number, as bash writes it.
        first: the first machine's address, without the port.
    """
    words = [*shlex.split(python), "-P", "-u", "-m", "pipelines.stage.launch", module, str(work)]
    line = shlex.join(words)
    if asked.nodes > 1:
        line += f" --nodes {asked.nodes} --node {node} --address {first}:{launch.port}"
        line += f" --interface {shlex.quote(launch.interface or '')}"
    return line


def is_name(text: str) -> bool:
    """Whether a text is a job's name of ours."""
    return re.fullmatch(r"whetstone-[0-9a-f]{12}-[0-9a-f]{12}", text) is not None
