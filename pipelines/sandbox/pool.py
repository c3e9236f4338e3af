"""Sandbox processes side by side: a thread for each, jobs in a queue, a budget for the whole batch."""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.base.files import read_json, write_atomic
from pipelines.sandbox import SandboxError, isolation
from pipelines.sandbox.interface import Sandbox
from pipelines.sandbox.worker import Broken, Worker

if TYPE_CHECKING:
    from pipelines.sandbox.remote import Remote

logger = logging.getLogger("whetstone")
Job = Callable[[Sandbox], Any]
TRIES = 2
"""A job whose sandbox process breaks is tried again in another one, once."""
MOST_REMOTE = 64
"""Programs that one process has on a server side by side, whatever the server has."""
SHORT_S = 1.0
"""Wall time of a job's first turn, where a batch has several: one that needs more has a second turn, after all others had their first."""


@dataclass(frozen=True)
class Failed:
    """In the place of a result: the job raised, or the sandbox broke twice under it."""

    why: str
    error: str = "SandboxBroken"
    """Name of the exception that the job raised."""


class Late:
    """In the place of a result: the batch's time was over before the job began."""


class Unfinished:
    """In the place of a result: the job's first turn was too short for it, and the batch's time was over before its second."""


class _Batch:
    def __init__(self, jobs: Sequence[Job], budget_s: float) -> None:
        self.jobs = jobs
        self.results: list[Any] = [Late] * len(jobs)
        self.until = time.monotonic() + budget_s
        self.left = len(jobs)
        self.short_s = SHORT_S if len(jobs) > 1 else math.inf
        self.lock = threading.Lock()
        self.done = threading.Event()

    def put(self, index: int, result: Any) -> None:
        with self.lock:
            self.results[index] = result
            self.left -= 1
            if self.left == 0:
                self.done.set()


class Pool:
    """Persistent sandbox processes.

    Args:
        workers: how many at most; default: one per processor this process may use, at most 8, or as many as the server has.
        limits_only: whether they may run without a wall where there is none to be had.
        remote: the server that runs programs in the place of this machine.
    """

    def __init__(self, workers: int | None = None, limits_only: bool = False, remote: Remote | None = None) -> None:
        self.size = workers or (min(8, len(os.sched_getaffinity(0))) if remote is None else 0)
        self.limits_only, self.remote = limits_only, remote
        self._about: dict[str, Any] | None = None
        self.owner = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[_Batch, int, float] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._wanted = 0
        self._lock, self._asking = threading.Lock(), threading.Lock()

    def run(self, jobs: Sequence[Job], budget_s: float) -> list[Any]:
        """What every job returns, in order; `Failed`, `Late` or `Unfinished` in the place of a result that could not be had.

        A job must have the same result when it is run twice. What one raises is its own `Failed`, and costs no other job anything.

        Raises:
            SandboxError: there is no sandbox here, or the server that lends them cannot be had.
        """
        if not jobs:
            return []
        level, start = self._starter()
        if level not in used:
            used.append(level)
            logger.info("programs run in a sandbox of level %s", level)
        batch = _Batch(jobs, budget_s)
        with self._lock:
            self._wanted += len(jobs)  # of every thread that waits for results now
            while len(self._threads) < min(self.size, self._wanted):
                thread = threading.Thread(target=self._work, args=(start,), daemon=True, name="sandbox")
                thread.start()
                self._threads.append(thread)
        for index in range(len(jobs)):
            self._jobs.put((batch, index, batch.short_s))
        batch.done.wait()
        with self._lock:
            self._wanted -= len(jobs)
        return batch.results

    def about(self) -> dict[str, Any]:
        """What the server says of itself, asked once.

        Raises:
            SandboxError: it cannot be had.
        """
        with self._asking:
            if self._about is None:
                assert self.remote is not None
                self._about = self.remote.about()
                self.size = self.size or max(1, min(MOST_REMOTE, int(self._about.get("workers", 1))))
            return self._about

    def _starter(self) -> tuple[str, Callable[[], Sandbox]]:
        """What confines programs, and how a thread gets a sandbox."""
        if self.remote is None:
            level = isolation.best(self.limits_only)
            return level, lambda: Worker(level)
        from pipelines.sandbox.remote import RemoteSandbox

        remote = self.remote
        return f"{self.about().get('level')} at {remote.url}", lambda: RemoteSandbox(remote)

    def _work(self, start: Callable[[], Sandbox]) -> None:
        """A thread's life; its worker's process is tied to it, so it ends only with the pool."""
        worker: Sandbox | None = None
        while (task := self._jobs.get()) is not None:
            batch, index, turn_s = task
            if time.monotonic() >= batch.until:
                batch.put(index, Late if turn_s == batch.short_s else Unfinished)
                continue
            worker, result = _tried(worker, start, batch.jobs[index], turn_s)
            if result is Unfinished:
                self._jobs.put((batch, index, math.inf))
            else:
                batch.put(index, result)
        if worker is not None:
            worker.close()

    def close(self) -> None:
        """End every process; the pool starts them again when it is used."""
        if os.getpid() != self.owner:
            return
        with self._lock:
            for _ in self._threads:
                self._jobs.put(None)
            for thread in self._threads:
                thread.join(10)
            self._threads = []


def _tried(worker: Sandbox | None, start: Callable[[], Sandbox], job: Job, turn_s: float) -> tuple[Sandbox | None, Any]:
    """A job's turn: the worker to go on with, and the job's result; `Unfinished` where the turn was over first."""
    result: Any = None
    for _ in range(TRIES):
        try:
            worker = worker or start()
            worker.until = time.monotonic() + turn_s
            result = job(worker)
            return worker, Unfinished if time.monotonic() >= worker.until and turn_s < math.inf else result
        except (Broken, SandboxError) as error:
            result = Failed(str(error))
            if worker is not None:
                worker.close()
            worker = None
        except Exception as error:
            logger.warning("a job of the sandbox failed", exc_info=True)
            return worker, Failed(str(error), type(error).__name__)
    return worker, result


used: list[str] = []
"""Levels that have confined a program of this process; of a server with its address."""
_shared: Pool | None = None
_settings: dict[str, Any] = {}


def configure(workers: int | None = None, limits_only: bool | None = None) -> None:
    """Set what the process's own pool is made with; None leaves a setting as it is."""
    global _shared
    settings = {"workers": workers, "limits_only": limits_only}
    _settings.update({key: value for key, value in settings.items() if value is not None})
    if _shared is not None:
        _shared.close()
        _shared = None


def confine(sandbox: str | Mapping[str, Any]) -> None:
    """Have this process's programs run as a recipe's `sandbox` says: `auto`, `limits_only`, or the fields of a server."""
    remote, limits_only = None, sandbox == "limits_only"
    if not isinstance(sandbox, str):
        from pipelines.sandbox.remote import Remote

        remote = Remote(**sandbox)
    if (remote, limits_only) == (_settings.get("remote"), _settings.get("limits_only", False)):
        return  # the pool stays, with the sandboxes that it has started
    _settings["remote"] = remote
    configure(limits_only=limits_only)


def elsewhere() -> bool:
    """Whether a server runs this process's programs."""
    return _settings.get("remote") is not None


def record(path: Path) -> None:
    """Write which levels have confined programs, beside those that a killed attempt has recorded; nothing where none has."""
    if used:
        before = read_json(path)
        levels_before = before.get("levels", []) if isinstance(before, dict) else []
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"levels": sorted({*levels_before, *used})}))


def shared() -> Pool:
    """The process's own pool, started when it is first needed and ended with the process."""
    global _shared
    if _shared is None or _shared.owner != os.getpid():
        _shared = Pool(**_settings)
        atexit.register(_shared.close)
    return _shared
