"""What runs a stage elsewhere, and what it has started there, as `tasks.process` uses them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipelines.base.errors import Problem


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


class Launcher(Protocol):
    """Runs stages elsewhere."""

    @property
    def waited_s(self) -> float:
        """Seconds that what it runs has waited for a machine."""

    def attach(self, work: Path, job: str) -> Launched | None:
        """What an earlier pipeline process has launched in this work folder for the same job, unless it failed; any other is ended."""

    def start(self, module: str, work: Path, environment: dict[str, str]) -> Launched:
        """Launch `python -m module WORK`; `job.json` is there."""
