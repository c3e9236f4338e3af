"""How long anybody waits for a tracking server, and the two ways in which it can fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
UPLOAD_BYTES_PER_S = 20e6
"""A slower upload goes on in the background, or from the outbox."""


class TrackerError(Exception):
    """MLflow did not do what was asked; the message is one line without secrets."""


class TrackerUnavailable(TrackerError):
    """No answer, or one that may be another tomorrow (5xx, 401): worth trying again."""


class TrackerRejected(TrackerError):
    """A refusal for good (400, 403, 404, a deleted run): trying again changes nothing."""


class TimeBudget:
    """Seconds that may be spent waiting in all, over any number of calls.

    Args:
        seconds: the budget; None waits for ever.
    """

    def __init__(self, seconds: float | None) -> None:
        self.left = seconds

    def allow(self, size: int) -> None:
        """More time for an upload of `size` bytes: work is not waiting."""
        if self.left is not None:
            self.left += size / UPLOAD_BYTES_PER_S

    def spend(self, seconds: float) -> None:
        """Take seconds from the budget."""
        if self.left is not None:
            self.left = max(0.0, self.left - seconds)

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.left is not None and self.left <= 0

    def run(self, work: Callable[[], T], *, growing: Callable[[], int] | None = None) -> T:
        """The result of `work`, done in a thread of its own that is left behind when the time is up.

        Args:
            growing: bytes that have arrived; while the number grows, no time is counted.

        Raises:
            TrackerUnavailable: the time is up. Whatever else `work` raises.
        """
        if self.left is None:
            return work()
        box: dict[str, Any] = {}

        def call() -> None:
            try:
                box["result"] = work()
            except BaseException as error:
                box["error"] = error

        if self.over:
            raise TrackerUnavailable("no time is left to wait for it")
        began, arrived = time.monotonic(), 0
        worker = threading.Thread(target=call, daemon=True, name="mlflow-call")
        worker.start()
        last = began
        while worker.is_alive():
            worker.join(0.05)
            now = time.monotonic()
            size = growing() if growing else 0
            if size <= arrived:
                self.spend(now - last)
            last, arrived = now, max(size, arrived)
            if self.over and worker.is_alive():
                raise TrackerUnavailable(f"no answer within {now - began:.0f} s")
        if "error" in box:
            raise box["error"]
        return box["result"]
