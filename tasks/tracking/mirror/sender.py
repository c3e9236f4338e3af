"""A process that sends the feeds of stages to one tracker, as the process that started it sees it: what it is at, and whether it moves."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.base import owner
from pipelines.base.project import python
from tasks.environment import home
from tasks.tracking.mirror.feed import FEED
from tasks.tracking.mirror.process import FINISH, count_failure, state_of


class Sender(subprocess.Popen[bytes]):
    """Serves the mirrors of some stages in one tracker, one after another.

    Args:
        name: of the tracker.
        entries: of the stages; several only if all have ended.
    """

    def __init__(self, name: str, entries: Sequence[Path]) -> None:
        self.name, self.entries = name, list(entries)
        self.failures = {entry: state_of(entry, name)["failures"] for entry in entries}
        """How often each had failed before."""
        self._at, self._since = 0, time.monotonic()
        self._progress: tuple[Any, ...] = ()
        self._blamed = False
        environment = {**os.environ, owner.PARENT: str(os.getpid()), "OMP_NUM_THREADS": "1"}
        with open(self.entries[0] / f"{name}.log", "ab") as out:
            super().__init__(
                python("tasks.tracking.mirror.process", name, *map(str, entries)), env=environment, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True, cwd=home(),
            )  # fmt: skip

    def has_failed(self, entry: Path) -> bool:
        """Whether a mirror has failed since this process started."""
        return bool(state_of(entry, self.name)["failures"] > self.failures[entry])

    def current(self) -> Path | None:
        """The stage that it is at: the first that is neither done nor failed."""
        while self._at < len(self.entries):
            entry = self.entries[self._at]
            if not state_of(entry, self.name)["done"] and not self.has_failed(entry):
                return entry
            self._at += 1
        return None

    def quiet(self) -> float:
        """Seconds for which nothing has arrived though there was something to send."""
        entry = self.current()
        size = (entry / FEED).stat().st_size if entry and (entry / FEED).exists() else 0
        ended = bool(entry and (entry / FINISH).exists())
        progress = (self._at, state_of(entry, self.name)["sent"] if entry else 0, ended)
        if progress != self._progress[:-1] or (not ended and size == self._progress[-1]):
            self._progress, self._since = (*progress, size), time.monotonic()
        return time.monotonic() - self._since

    def count_death(self) -> None:
        """Note, once, that a process which has ended by itself failed at the stage that it was at."""
        entry, self._blamed, before = self.current(), True, self._blamed
        if self.returncode and entry and not before:
            count_failure(entry, self.name, f"its process ended with {self.returncode}")

    def end(self, problem: str = "") -> None:
        """End it, with the service that its client may have started.

        Args:
            problem: counted as a failure of the stage that it is at.
        """
        entry, self._blamed = self.current(), True
        owner.end_group(self, 0)
        if problem and entry:
            count_failure(entry, self.name, problem)
