"""What verifiers, tools and environments use of a sandbox, wherever it is.

It is a process of this machine (`worker.py`), or one that a server on another machine lends (`remote.py`, and `server.py` there).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from pipelines.sandbox.worker import Limits


class RunningProgram(Protocol):
    """A program in a sandbox. What comes from it is data to judge; every wait has an end."""

    overflow: bool
    """Whether it sent more than it may."""

    def ask(self, message: Any | None) -> dict[str, Any]:
        """Send a message (or none) and wait for the next reply; `{"gone": why}` where there is none."""

    def output(self) -> bytes:
        """What a script printed."""

    def finish(self, patience_s: float) -> dict[str, Any]:
        """How it ended; it is ended where it has not by then."""

    def left_s(self) -> float:
        """Seconds until its deadline."""


class Sandbox(Protocol):
    """Where programs run one after another, or two side by side; nothing of one is left for the next."""

    until: float
    """When every program of the job in hand must have ended, by the monotonic clock."""

    @property
    def left_s(self) -> float:
        """Seconds until `until`."""

    def run(
        self, request: dict[str, Any], limits: Limits | None = None, stdin: bytes | None = None
    ) -> AbstractContextManager[RunningProgram]:
        """A program, from its first line to its certain end.

        Args:
            request: mode, source and what else `inside/harness.py` reads; for a shell the files that it begins with.
            stdin: what the program reads, for mode `script`.

        Raises:
            Broken: the sandbox itself failed.
        """

    def close(self) -> None:
        """End it and everything in it."""
