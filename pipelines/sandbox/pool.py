"""Sandbox processes side by side: a thread for each, jobs in a queue, a budget for the whole batch."""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.sandbox import SandboxError, levels
from pipelines.sandbox.worker import Broken, Worker
from pipelines.stage.files import read_json, write_atomic

logger = logging.getLogger("whetstone")
Job = Callable[[Worker], Any]
TRIES = 2
"""A job whose sandbox process breaks is tried again in another one, once."""


@dataclass(frozen=True)
class Failed:
    """In the place of a result: the sandbox broke twice under this job."""

    why: str


class Late:
    """In the place of a result: the batch's time was over before the job began."""


class _Batch:
    def __init__(self, jobs: Sequence[Job], budget_s: float) -> None:
        self.jobs = jobs
        self.results: list[Any] = [Late] * len(jobs)
        self.until = time.monotonic() + budget_s
        self.left = len(jobs)
        self.error: Exception | None = None
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
        workers: how many at most; default: one per processor this process may use, at most 8.
        limits_only: whether they may run without a wall where there is none to be had.
    """

    def __init__(self, workers: int | None = None, limits_only: bool = False) -> None:
        self.size = workers or min(8, len(os.sched_getaffinity(0)))
        self.limits_only = limits_only
        self.owner = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[_Batch, int] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._wanted = 0
        self._lock = threading.Lock()

    def run(self, jobs: Sequence[Job], budget_s: float) -> list[Any]:
        """What every job returns, in order; `Failed` or `Late` in the place of a result that could not be had.

        Raises:
            SandboxError: there is no sandbox here.
            Exception: what a job raised.
        """
        if not jobs:
            return []
        level = levels.best(self.limits_only)
        if level not in used:
            used.append(level)
            logger.info("programs run in a sandbox of level %s", level)
        batch = _Batch(jobs, budget_s)
        with self._lock:
            self._wanted += len(jobs)  # of every thread that waits for results now
            while len(self._threads) < min(self.size, self._wanted):
                thread = threading.Thread(target=self._work, args=(level,), daemon=True, name="sandbox")
                thread.start()
                self._threads.append(thread)
        for index in range(len(jobs)):
            self._jobs.put((batch, index))
        batch.done.wait()
        with self._lock:
            self._wanted -= len(jobs)
        if batch.error is not None:
            raise batch.error
        return batch.results

    def _work(self, level: levels.Level) -> None:
        """A thread's life; its worker's process is tied to it, so it ends only with the pool."""
        worker: Worker | None = None
        while (task := self._jobs.get()) is not None:
            batch, index = task
            result: Any = None
            if time.monotonic() >= batch.until or batch.error is not None:
                batch.put(index, Late)
                continue
            for _ in range(TRIES):
                try:
                    worker = worker or Worker(level)
                    result = batch.jobs[index](worker)
                    break
                except (Broken, SandboxError) as error:
                    result = Failed(str(error))
                    if worker is not None:
                        worker.close()
                    worker = None
                except Exception as error:
                    batch.error = error
                    break
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


used: list[levels.Level] = []
"""Levels that have confined a program of this process."""
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
