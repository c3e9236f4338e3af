"""Start a stage in a process of its own, watch it, and leave nothing running."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.base import owner
from pipelines.base.errors import USER_ERROR_EXIT, Interrupted, UserError
from pipelines.base.files import read_json, read_object, write_atomic
from pipelines.base.project import THREADS, python
from pipelines.stage.fork_server import Forked
from pipelines.stage.process import ERROR, JOB, METRICS, OUT_OF_MEMORY, read_error

if TYPE_CHECKING:
    from tasks.launched import Ending, Launched, Launcher

LOG = "stage.log"
LAUNCHED = {"slurm": "slurm.sh", "kubernetes": "kubernetes.json", "ray": "ray.json", "skypilot": "skypilot.json"}
"""Kind of launcher → the file of a work folder that holds what was handed in there."""
LOG_BYTES = 200_000
"""Of a log that are read after a failure."""
LAST_LINES = 12
"""Of it that are shown."""
POLL_S = 0.2
WAITING_S = 60.0

stop_all = threading.Event()
"""Set where a signal has ended the main thread's work: stages that other threads wait for end too."""


def launched_before(work: Path) -> list[str]:
    """The kinds of launchers that have handed in a job for this work folder."""
    return [kind for kind, name in LAUNCHED.items() if (work / name).exists()]


class StageFailed(UserError):
    """A stage ended without its result.

    Args:
        problem: what is wrong; `fix` and `problems` as for any error that a person can fix.
        exit_code: of the command line: 1, or 2 where the user must change something first.
        kind: the kind of the error that the stage left; `stage` where its process ended without one.
        signal: the one that has killed the process; None where none has.
        log: where its log is, and the last lines.

    Attributes:
        stage: its name in the recipe, and `run_id` its run in MLflow, as far as they are known.
    """

    def __init__(
        self,
        problem: str = "",
        exit_code: int = 1,
        kind: str = "stage",
        *,
        signal: int | None = None,
        log: str = "",
        **data: Any,
    ) -> None:
        super().__init__(*[problem] if problem else [], **data)
        self.exit_code, self.kind, self.signal, self.log = exit_code, kind, signal, log
        self.stage, self.run_id = "", ""
        self.last_lines: list[str] = []

    def __str__(self) -> str:
        return f"{super().__str__()}{self.log}"


def ending_of(error: BaseException) -> str:
    """How a stage has ended that ended with this, for who watches it.

    >>> ending_of(KeyboardInterrupt()), ending_of(OSError()), ending_of(StageFailed("x", signal=15)), ending_of(StageFailed("x", signal=9))
    ('stopped', 'failed', 'stopped', 'failed')

    Returns:
        "stopped" where somebody stopped it, or it stopped itself for a stated reason; else "failed".
    """
    if isinstance(error, StageFailed):
        stopped = error.kind == Interrupted.kind or error.signal in (signal.SIGTERM, signal.SIGINT)
    else:
        stopped = not isinstance(error, Exception)
    return "stopped" if stopped else "failed"


@contextlib.contextmanager
def lock(path: Path, run: str | None = None, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold a lock file; a killed holder lets go at once.

    Args:
        path: the file; the holder writes into it who it is.
        run: the holder's pipeline run, for those who wait.
        waiting: called at once and then every `WAITING_S` with who holds the lock, while somebody else does.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    held, wait_s = FileLock(path, poll_interval=POLL_S, fallback_to_soft=False), 0.0
    while not held.is_locked:
        try:
            held.acquire(wait_s)
        except Timeout:
            wait_s = WAITING_S
            if waiting:
                waiting(holder(path))
    try:
        path.write_text(json.dumps({"pid": os.getpid(), "since": time.time(), "run": run}))
        yield
    finally:
        held.release()


def holder(path: Path) -> str:
    """Who holds a lock, in words."""
    body = read_object(path, pid=int, since=(int, float), run=str)
    if body is None or not 0 < (body.get("since") or 0) < 2**33:
        return "another process"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(body["since"]))
    return f"process {body.get('pid')} (since {since}, run {body.get('run') or 'without a record'})"


Child = subprocess.Popen[bytes] | Forked
Take = Callable[[Path, dict[str, str]], Child | None]
"""Given a work folder and an environment, the process that has waited for them and now works; None: a new one is started."""


def run(
    module: str,
    work: Path,
    job: dict[str, Any],
    tick: Callable[[], None],
    take: Take = lambda _work, _environment: None,
    launcher: Launcher | None = None,
) -> dict[str, float]:
    """Run `python -m module WORK` to its end; `tick` is called several times a second meanwhile.

    Args:
        take: gives a process that was started ahead.
        launcher: runs it in place of this machine. What it runs has no parent here, and outlives this process where that is killed.

    Returns:
        the stage's metrics.

    Raises:
        StageFailed: it ended without them.
    """
    work.mkdir(parents=True, exist_ok=True)
    owned_by = {} if launcher else {"parent_pid": os.getpid()}
    text = json.dumps({**job, **owned_by}, indent=1, sort_keys=True, default=str)
    attached = launcher.attach(work, text) if launcher else None
    child = attached or _begin(module, work, job, text, take, launcher)
    try:
        while child.poll() is None:
            if stop_all.is_set():
                raise KeyboardInterrupt
            tick()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL_S)
    finally:
        end(child)
    metrics, code = read_json(work / METRICS), child.wait()
    if code == 0 and isinstance(metrics, dict):
        return metrics
    ending = None if isinstance(child, subprocess.Popen | Forked) else child.ending
    raise _failure(work, code, ending)


def _begin(
    module: str, work: Path, job: dict[str, Any], text: str, take: Take, launcher: Launcher | None
) -> Child | Launched:
    for left_over in (METRICS, ERROR):
        (work / left_over).unlink(missing_ok=True)
    if not (work / "checkpoints").exists():  # what an attempt without commits left there would end up in the artifact
        shutil.rmtree(work / "out", ignore_errors=True)
    (work / "out").mkdir(exist_ok=True)
    write_atomic(work / JOB, text)
    environment = environment_of(job)
    if launcher:
        return launcher.start(module, work, environment)
    return take(work, environment) or _start(module, work, environment)


def end(child: Child | Launched, patience_s: float = 5.0) -> None:
    """Stop a process that leads a group, and everything it started in it.

    Args:
        patience_s: seconds between SIGTERM and SIGKILL.
    """
    if not isinstance(child, subprocess.Popen | Forked):
        child.cancel()
    elif not (isinstance(child, Forked) and child.abandon()):
        owner.end_group(child, patience_s)


def _start(module: str, work: Path, environment: dict[str, str]) -> Child:
    with open(work / LOG, "ab") as log:
        return subprocess.Popen(
            python("pipelines.stage.launch", module, str(work)), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


def environment_of(job: dict[str, Any]) -> dict[str, str]:
    """Environment of a stage's process: the job's threads, no bars."""
    threads = str(job.get("threads") or max(1, (os.cpu_count() or 2) // 2))
    pinned = dict.fromkeys(THREADS, threads)
    quiet = {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1", "PYTHONFAULTHANDLER": "1"}
    return {**os.environ, **quiet, **pinned}


def log_end(work: Path) -> str:
    """The log of a stage, or its last `LOG_BYTES` from the start of a line; empty where there is none."""
    try:
        with open(work / LOG, "rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            handle.seek(max(0, size - LOG_BYTES))
            text = handle.read().decode(errors="replace")
    except OSError:
        return ""
    return (text.partition("\n")[2] if size > LOG_BYTES else text).strip()


def _failure(work: Path, code: int, ended: Ending | None = None) -> StageFailed:
    """What has become of a stage whose process ended with a code and without metrics.

    Args:
        ended: why, where it did not end by itself.
    """
    kind, problems = read_error(work)
    if code == USER_ERROR_EXIT and problems:
        return StageFailed(problems=problems, exit_code=1 if kind == Interrupted.kind else 2, kind=kind)
    tail = "\n".join(log_end(work).splitlines()[-LAST_LINES:])
    log = f" Log: {work / LOG}\n{tail}"
    if ended is not None:
        return StageFailed(problems=[ended.problem], signal=ended.signal, log=log)
    killer = -code if code < 0 else None
    ending = f"exit code {code}" if killer is None else f"killed by signal {killer}"
    hint = "Out of memory? Lower micro_batch_tokens or decode_rows, or use LoRA or bfloat16."
    of_memory = killer == signal.SIGKILL or kind == OUT_OF_MEMORY
    return StageFailed(
        f"the stage ended with {ending}.",
        fix=hint if of_memory else "",
        signal=killer,
        log=log,
    )
