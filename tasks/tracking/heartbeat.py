"""Signs of life of a pipeline's run, so that MLflow does not show it as running for ever when its machine is gone."""

from __future__ import annotations

import contextlib
import threading

from tasks.environment import tracking_uri
from tasks.tracking.time_budget import TrackerRejected, TrackerUnavailable

EVERY_S = 60.0
CALL_S = 3.0
"""How long a closing run waits for a sign of life that is on its way."""
UNRESPONSIVE_S = 900.0
"""A run that has given no sign of life for so long is closed by whoever looks; if it lives after all, its next sign reopens it."""


class Heartbeat:
    """Says from a thread of its own that a run's process is alive, until `stop`.

    Args:
        run_id: the pipeline's run in MLflow.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id, self._uri = run_id, tracking_uri()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True, name="mlflow-heartbeat")
        self._thread.start()

    def _loop(self) -> None:
        from tasks.tracking import open_runs as tracking_open

        while not self._stopped.is_set() and tracking_uri() == self._uri:
            try:
                with contextlib.suppress(TrackerUnavailable):
                    tracking_open.beat(self.run_id, lambda: not self._stopped.is_set())
            except TrackerRejected:  # somebody has deleted the run
                return
            self._stopped.wait(EVERY_S)

    def stop(self) -> None:
        """The run is about to be closed."""
        self._stopped.set()
        self._thread.join(CALL_S)
