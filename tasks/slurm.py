"""A stage as a job of Slurm, on machines that share the work folder.

A job is known by its name, which holds the work folder, what the stage shall do, and what the job asks for. So a pipeline that was killed
finds its job again, even where it was killed between handing it in and hearing its number, and never are there two that write to one
folder. The job says how it ended in a file of the work folder; Slurm is believed where it says that it has ended the job.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.base.errors import Problem
from pipelines.base.files import write_atomic
from pipelines.base.project import THREADS, python
from pipelines.recipe.launch import Launch, Resources
from pipelines.stage.process import METRICS
from tasks.launched import Ending, Job, log
from tasks.named_jobs import failed, folder_name, name_of
from tasks.process import LAUNCHED, LOG, StageFailed

SCRIPT = LAUNCHED["slurm"]
EXIT = "slurm.exit"
COMMANDS = ("sbatch", "squeue", "scancel")
OVER = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED"),
        *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    )
)
"""States in which a job will not run again; in all others it waits, runs, or is queued again."""
WAITS = frozenset(("PENDING", "CONFIGURING"))
WARNED_S = 120
"""Before the time limit, when the job is told."""
GRACE_S = 60.0
"""How long a file that another machine has written may be on its way, and a state that is over may become another one."""
CANCEL_S = 60.0
CANCEL_POLL_S = 1.0
ASK_S = 60.0
"""How long a command of Slurm may take."""
OF_SLURM = re.compile(r"SLURM_(?!CONF$|CLUSTERS$)|SRUN_")
"""Variables of the job in which a pipeline itself runs: a job that it hands in is none of its steps."""


class SlurmError(Exception):
    """A command of Slurm failed; the text is what it said.

    Args:
        timed_out: it was ended because it took too long, and may have done its work.
    """

    def __init__(self, text: str, timed_out: bool = False) -> None:
        super().__init__(text)
        self.timed_out = timed_out


@dataclass(frozen=True)
class Exit:
    """How a job ended, as it has written itself."""

    name: str
    number: str
    code: int
    """Of the stage: -N where a signal N has killed it."""


class Slurm:
    """Launches one stage.

    Args:
        launch: the recipe's section.
        stage: the stage's name in it.
    """

    def __init__(self, launch: Launch, stage: str) -> None:
        self.launch, self.stage = launch, stage
        self.asked = launch.stages[stage]
        self._job: SlurmJob | None = None

    @property
    def waited_s(self) -> float:
        """Seconds in Slurm's queue."""
        return self._job.waited_s if self._job else 0.0

    def attach(self, work: Path, job: str) -> SlurmJob | None:
        """See `launched.Launcher`.

        Raises:
            StageFailed: as `end_others`.
        """
        name = self.name_of(work, job)
        running = end_others(work, self.stage, name)
        if running:
            log.warning("%s: continues with job %s, which was handed in before", self.stage, running)
            self._job = self._of(running, work)
        written = _written(work)
        if self._job is None and written is not None and (written.name, written.code) == (name, 0):
            log.warning("%s: job %s has ended meanwhile", self.stage, written.number)
            self._job = self._of(written.number, work)
        return self._job

    def start(self, module: str, work: Path, environment: dict[str, str]) -> SlurmJob:
        """Hand the job in.

        Raises:
            StageFailed: Slurm refuses it.
        """
        work = work.resolve()
        (work / EXIT).unlink(missing_ok=True)
        job = (work / "job.json").read_text()
        name = self.name_of(work, job)
        write_atomic(work / SCRIPT, script_of(self.launch, self.asked, module, work, name))
        if json.loads(job).get("threads") is None:  # the machine's, which is another one
            environment = {name: value for name, value in environment.items() if name not in THREADS}
        if "SLURM_JOB_ID" in environment:
            environment = {name: value for name, value in environment.items() if not OF_SLURM.match(name)}
        try:
            answer = _ask(["sbatch", "--parsable", str(work / SCRIPT)], environment)
        except SlurmError as error:
            if error.timed_out:
                self._withdraw(work)
            raise self._refused(error) from None
        except BaseException:  # the run is being stopped, and the job may have been handed in all the same
            self._withdraw(work)
            raise
        number = answer.strip().partition(";")[0]
        log.warning("%s: handed to Slurm as job %s", self.stage, number)
        self._job = self._of(number, work)
        return self._job

    def name_of(self, work: Path, job: str) -> str:
        """The name of the job that does in a work folder what `job` says."""
        return name_of(work, job, [*options_of(self.launch, self.asked), *self.launch.setup])

    def _withdraw(self, work: Path) -> None:
        """Cancel what has been handed in, where anything has."""
        try:
            for number in in_folder(work):
                cancelled(number)
        except SlurmError as error:
            log.warning("%s: a job may be in Slurm's queue, which does not answer: %s", self.stage, error)

    def _of(self, number: str, work: Path) -> SlurmJob:
        return SlurmJob(number, work, self.stage, self.launch.poll_s)

    def _refused(self, error: SlurmError) -> StageFailed:
        fix = "Change what the job asks for, or leave the stage out of launch.stages to run it here."
        return failed(self.stage, f"sbatch failed: {error}", fix)


class SlurmJob(Job):
    """A job that was handed in; see `launched.Launched`.

    Args:
        number: Slurm's.
        work: the stage's work folder.
        stage: its name, for messages.
        poll_s: how often Slurm is asked.
    """

    def __init__(self, number: str, work: Path, stage: str, poll_s: float) -> None:
        super().__init__(number, stage)
        self.number, self.work, self.poll_s = number, work, poll_s
        self._since_over = 0.0
        self._state = ""

    def poll(self) -> int | None:
        """Its exit code once it has one and will not run again."""
        if self._code is None:
            written = _written(self.work)
            code = written.code if written is not None and written.number == self.number else None
            if code == 0:
                self._code = 0
                (self.work / EXIT).unlink(missing_ok=True)  # the result is taken, once
            elif time.monotonic() - self._asked >= self.poll_s:
                self._ask(code)
        return self._code

    def _ask(self, code: int | None) -> None:
        """Ask Slurm, and take its word where the job is over.

        Args:
            code: that the job has written.
        """
        now = time.monotonic()
        if self._state in WAITS:
            self.waited_s += now - self._asked
        self._asked = now
        try:
            self._state, why, _ = jobs().get(self.number, ("", "", ""))
        except SlurmError as error:
            self.say("Slurm does not answer", str(error))
            return
        if self._state and self._state not in OVER:
            self._since_over = 0.0
            self.say(self._state.lower(), "" if why in ("None", "") else why)
            return
        self._since_over = self._since_over or now
        if code is not None or now - self._since_over >= GRACE_S:
            self._end(code)

    def _end(self, code: int | None) -> None:
        """It is over: by itself where Slurm says no more than that, and by Slurm elsewhere."""
        state, of_slurm, killer = _accounted(self.number) or ("", 0, 0)
        state = state or self._state
        if state == "COMPLETED":
            self._code = code or 0
        elif code is not None and state in ("", "FAILED"):
            self._code = code
        else:
            self._code = code or 1
            how = f" (exit code {of_slurm}, signal {killer})" if of_slurm or killer else ""
            text = f"Slurm ended job {self.number}: {state or 'it is gone'}{how}"
            self.ending = Ending(Problem(*_field_and_fix(state, self.stage, text)), killer or None)

    def cancel(self) -> None:
        """See `launched.Launched`; returns when it no longer runs, or after `CANCEL_S`."""
        if self._code is not None:
            return
        self._code = -signal.SIGTERM
        try:
            ended = cancelled(self.number)
        except SlurmError as error:
            log.warning("%s: %s", self.stage, error)
            ended = False
        if not ended:
            log.warning("%s: job %s may still run; end it by: scancel %s", self.stage, self.number, self.number)


def end_others(work: Path, stage: str, name: str = "") -> str:
    """Cancel the jobs of a work folder but the one of a name.

    Returns:
        the number of that one; an empty text where there is none.

    Raises:
        StageFailed: Slurm does not answer, or does not end a job.
    """
    kept = ""
    try:
        for number, called in in_folder(work).items():
            if called == name and not kept:
                kept = number
            elif not cancelled(number):
                raise failed(stage, f"job {number} works in the same folder and does not end", f"Run: scancel {number}")
    except SlurmError as error:
        fix = f"Run it once Slurm is there again; to run the stage here, delete {work / SCRIPT} if no job works on it any more."
        raise failed(stage, f"Slurm does not answer: {error}", fix) from None
    return kept


def in_folder(work: Path) -> dict[str, str]:
    """The jobs that wait or run for a work folder: number → name.

    Raises:
        SlurmError: Slurm does not answer.
    """
    start = folder_name(work)
    return {number: name for number, (state, _, name) in jobs().items() if state not in OVER and name.startswith(start)}


def cancelled(number: str) -> bool:
    """Cancel a job, and wait; whether it has ended.

    Raises:
        SlurmError: Slurm does not answer.
    """
    until = time.monotonic() + CANCEL_S
    try:
        _ask(["scancel", number])
    except SlurmError as error:  # such as for a job that has ended meanwhile: its state decides
        log.info("scancel %s: %s", number, error)
    while jobs().get(number, ("COMPLETED", "", ""))[0] not in OVER:
        if time.monotonic() >= until:
            return False
        time.sleep(CANCEL_POLL_S)
    return True


def jobs() -> dict[str, tuple[str, str, str]]:
    """The user's jobs that Slurm knows: number → state, reason, name.

    Raises:
        SlurmError: it could not be asked.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    text = _ask(["squeue", "--noheader", "--states=all", "--me", "--format=%A|%T|%r|%j"], environment)
    rows = [line.strip().split("|", 3) for line in text.splitlines() if line.count("|") >= 3]
    return {number: (state, why, name) for number, state, why, name in rows}


def _accounted(number: str) -> tuple[str, int, int] | None:
    """State, exit code and signal of a job that is over, by Slurm's accounting; None where there is none or it does not know yet."""
    try:
        text = _ask(
            ["sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode", "--jobs", number]
        )
    except SlurmError:
        return None
    line = re.match(r"([A-Z_]+)[^|]*\|(\d+):(\d+)", text)
    return (line[1], int(line[2]), int(line[3])) if line and line[1] in OVER else None


def _written(work: Path) -> Exit | None:
    """What the last job of a work folder that has ended by itself has left there.

    An exit code of 0 without metrics is none: srun may say it where a machine was lost.
    """
    try:
        name, number, text = (work / EXIT).read_text().split()
        code = int(text)
    except (OSError, ValueError):
        return None
    if code == 0 and not (work / METRICS).exists():
        return None
    return Exit(name, number, 128 - code if code > 128 else code)


def options_of(launch: Launch, asked: Resources) -> list[str]:
    """What a job asks for, as options of sbatch; the user's own are shell words."""
    return [
        f"--nodes={asked.nodes}",
        "--ntasks-per-node=1",
        *([f"--gpus-per-node={asked.gpus}"] if asked.gpus else []),
        *([f"--cpus-per-task={asked.cpus}"] if asked.cpus else []),
        *([f"--mem={asked.memory}"] if asked.memory else []),
        *([f"--time={asked.time}"] if asked.time else []),
        *([f"--partition={_quoted(launch.partition)}"] if launch.partition else []),
        *([f"--account={_quoted(launch.account)}"] if launch.account else []),
        *launch.options,
    ]


def script_of(launch: Launch, asked: Resources, module: str, work: Path, name: str) -> str:
    """The batch script of a stage."""
    options = [
        f"--job-name={name}",
        f"--chdir={_quoted(os.getcwd())}",
        f"--output={_quoted(str(work / LOG).replace('%', '%%'))}",
        "--open-mode=append",
        "--requeue",
        *([f"--signal=B:USR1@{WARNED_S}"] if asked.time else []),
        *options_of(launch, asked),
    ]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), *launch.setup]
    command = shlex.join(python("pipelines.stage.launch", module, str(work)))
    if asked.nodes > 1:
        lines.append('export first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
        command += f' --nodes {asked.nodes} --node "$SLURM_NODEID" --address "$first:{launch.port}"'
        command += f" --interface {shlex.quote(launch.interface or '')}"
    cores = f"--cpus-per-task={asked.cpus} " if asked.cpus else ""  # srun takes no number of cores from sbatch
    return "\n".join(lines) + BODY.format(
        name=name,
        exit=shlex.quote(str(work / EXIT)),
        cores=cores,
        command=shlex.quote(f"exec {command}"),
        requeue=launch.requeue,
    )


BODY = """
rm -f {exit}
again=
limit() {{
  if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {requeue} ]; then
    echo "The time limit is near: the job is queued again, and continues from its last commit."
    again=yes
    scontrol requeue "$SLURM_JOB_ID"
  else
    echo "The time limit is near."
  fi
}}
trap limit USR1
srun --kill-on-bad-exit=1 {cores}bash -c {command} &
step=$!
while wait "$step"; code=$?; kill -0 "$step" 2>/dev/null; do :; done
if [ -n "$again" ]; then sleep 60; fi
echo "{name} $SLURM_JOB_ID $code" > {exit}.new
mv {exit}.new {exit}
exit "$code"
"""


def problems(launch: Launch, stages: list[str]) -> Iterator[Problem]:
    """What keeps this machine from handing the jobs of stages in: commands that are not there, or what Slurm would refuse."""
    lacking = [command for command in COMMANDS if shutil.which(command) is None]
    if lacking:
        yield Problem(
            "launch.kind",
            f"there is no {lacking[0]} on PATH",
            "Run it on a machine from which jobs can be handed to Slurm.",
        )
        return
    try:
        jobs()
    except SlurmError as error:
        yield Problem("launch.kind", f"Slurm does not answer: {error}", "Run it once Slurm is there again.")
        return
    for stage in stages:
        refusal = _refusal(launch, launch.stages[stage])
        if refusal:
            yield Problem(
                _refused_field(launch, stage), f"sbatch would refuse the job: {refusal}", "Change it, or leave it out."
            )


def _refusal(launch: Launch, asked: Resources) -> str:
    """What sbatch says against a job; empty where it would take it."""
    options = [word for option in options_of(launch, asked) for word in shlex.split(option)]
    try:
        _ask(["sbatch", "--test-only", *options, "--wrap=true"])
    except SlurmError as error:
        return str(error)
    return ""


def _refused_field(launch: Launch, stage: str) -> str:
    """The field without which sbatch would take the job; the stage's where no single one is to blame."""
    asked = launch.stages[stage]
    for name in ("time", "memory", "cpus", "gpus", "nodes"):
        default = Resources.model_fields[name].default
        if getattr(asked, name) != default and not _refusal(launch, asked.model_copy(update={name: default})):
            return f"launch.stages.{stage}.{name}"
    for name in ("partition", "account", "options"):
        default = Launch.model_fields[name].default
        if getattr(launch, name) != default and not _refusal(launch.model_copy(update={name: default}), asked):
            return f"launch.{name}"
    return f"launch.stages.{stage}"


def _ask(command: list[str], environment: dict[str, str] | None = None) -> str:
    """What a command of Slurm prints.

    Raises:
        SlurmError: it could not be started, failed, or took longer than `ASK_S`.
    """
    try:
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S, check=True
        ).stdout  # fmt: skip
    except subprocess.CalledProcessError as error:
        raise SlurmError("; ".join(error.stderr.split("\n")).strip("; ") or f"exit code {error.returncode}") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"no answer of {command[0]} in {ASK_S:.0f} s", timed_out=True) from None
    except OSError as error:
        raise SlurmError(str(error)) from None


def _field_and_fix(state: str, stage: str, problem: str) -> tuple[str, str, str]:
    """A field, what is wrong and the fix for a state in which Slurm has ended a job."""
    field, again = f"launch.stages.{stage}", "run it again: it continues from its last commit."
    if state == "TIMEOUT":
        return f"{field}.time", problem, f"Raise it or set launch.requeue, and {again}"
    if state == "OUT_OF_MEMORY":
        return f"{field}.memory", problem, f"Raise it, and {again}"
    return field, problem, again.capitalize()


def _quoted(text: str) -> str:
    """A value in a line of sbatch's options."""
    return text if re.fullmatch(r"[\w./,:@%+-]+", text) else '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
