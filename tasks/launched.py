"""What runs a stage elsewhere, and what it has started there, as `tasks.process` uses them."""

from __future__ import annotations

import logging
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipelines.base.errors import Problem

log = logging.getLogger("whetstone.launch")


@dataclass(frozen=True)
class Ending:
    """Why a scheduler has ended a stage."""

    problem: Problem
    signal: int | None = None
    """What has killed it, where the scheduler knows."""


class Launched(Protocol):
    """A stage that a scheduler runs, used as a `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Its exit code, -N where a signal N has killed it; None while it waits or runs."""

    def wait(self, timeout: float | None = None) -> int:
        """As `poll`, once it has ended, or `subprocess.TimeoutExpired`."""

    def cancel(self) -> None:
        """End it where it has not ended."""

    @property
    def ending(self) -> Ending | None:
        """Why the scheduler has ended it; None where it ended by itself."""


class Job:
    """A job whose scheduler is asked for it again and again; see `Launched`.

    Args:
        name: the scheduler's.
        stage: for messages.
    """

    def __init__(self, name: str, stage: str) -> None:
        self.name, self.stage = name, stage
        self.ending: Ending | None = None
        self.waited_s = 0.0
        self._code: int | None = None
        self._asked = 0.0
        self._logged = ""

    def poll(self) -> int | None:
        """See `Launched`."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> int:
        """See `Launched`."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(self.name, timeout or 0.0)
            time.sleep(0.05)
        return code

    def say(self, state: str, why: str = "") -> None:
        """Log what has become of it, once."""
        text = f"{state} ({why})" if why else state
        if text != self._logged:
            self._logged = text
            log.warning("%s: job %s: %s", self.stage, self.name, text)


class Launcher(Protocol):
    """Runs stages elsewhere."""

    @property
    def waited_s(self) -> float:
        """Seconds that what it runs has waited for a machine."""

    def attach(self, work: Path, job: str) -> Launched | None:
        """What an earlier pipeline process has launched in this work folder for the same job, unless it failed; any other is ended."""

    def start(self, module: str, work: Path, environment: dict[str, str]) -> Launched:
        """Launch `python -m module WORK`; `job.json` is there."""
