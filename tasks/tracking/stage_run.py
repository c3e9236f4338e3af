"""The MLflow run of one stage, fed from the spool by a thread of its own. Training never waits for the server."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

from mlflow.entities import Metric

from pipelines.base.files import read_object, write_atomic
from pipelines.base.secrets import redact
from pipelines.stage.process import SYSTEM
from pipelines.stage.report import SPOOL, visible_lines
from tasks.environment import tracking_uri
from tasks.tracking import alarms
from tasks.tracking.client import client, dataset_inputs, experiment, forget, log_params, mlflow_errors
from tasks.tracking.models import link_inputs
from tasks.tracking.names import clean
from tasks.tracking.time_budget import TimeBudget, TrackerRejected, TrackerUnavailable

log = logging.getLogger("whetstone.tracking")
BATCH = 500
EVERY_S = 0.5
RETRY_S = (3.0, 6.0, 12.0, 30.0)
"""Seconds between attempts at a server that is away: the longer it does not answer, the rarer."""
BOOKMARK = "sent.json"


class StageTracker:
    """Opened late, fed from the spool, and told to `finish` within a budget of seconds.

    Args:
        stage: its name.
        work: the stage's work folder; holds the spool and this class's bookmark.
        experiment_name: where the run goes.
        parent: id of the pipeline's run, or None.
        about: run name, parameters, tags and dataset inputs, written when the run is opened.
    """

    def __init__(self, stage: str, work: Path, experiment_name: str, parent: str | None, about: dict[str, Any]) -> None:
        self.stage, self.work, self.experiment_name = stage, work, experiment_name
        self.parent, self.about = parent, about
        kept = read_object(work / BOOKMARK, run_id=str, opened=bool, sent=dict, broken=int) or {}
        self.run_id: str | None = kept.get("run_id")
        self.opened: bool = bool(kept.get("opened", False))
        self.broken: int = kept.get("broken") or 0
        sent = kept.get("sent") or {}
        self.sent = {n: v for n in (SPOOL, SYSTEM) if isinstance(v := sent.get(n, 0), int) and not isinstance(v, bool)}
        self.refused: str | None = None
        self.away_since: float | None = None
        self._attempts = 0
        self._checked = False
        self._lock = threading.Lock()
        self._abandoned = False
        self._thread: threading.Thread | None = None
        self._wake, self._finishing, self._done = threading.Event(), threading.Event(), threading.Event()

    def tick(self) -> None:
        """Keep the sender going; returns at once."""
        if self._thread is None and self.refused is None:
            self._thread = threading.Thread(target=self._loop, daemon=True, name=f"mlflow-{self.stage}")
            self._thread.start()

    def _loop(self) -> None:
        while not self._abandoned and self.refused is None:
            last = self._finishing.is_set()
            arrived = self.forward()
            if arrived and last:
                break
            self._wake.wait(EVERY_S if arrived else RETRY_S[min(self._attempts, len(RETRY_S)) - 1])
            self._wake.clear()
        self._done.set()

    def finish(self, patience: TimeBudget) -> bool:
        """Send what is left, waiting no longer than the budget; True where everything has arrived."""
        self._finishing.set()
        self._wake.set()
        self.tick()
        while self.refused is None and not self._done.is_set() and not patience.over:
            began = time.monotonic()
            self._done.wait(0.1)
            if self.away_since is not None and self._attempts > 1:
                self._attempts = 1  # somebody waits now: try every few seconds
            patience.spend(time.monotonic() - began)
        return self.abandon()

    def abandon(self) -> bool:
        """Stop sending; a call that is under way is left behind. True where everything had arrived."""
        arrived = self._done.is_set() and self.refused is None
        with self._lock:
            self._abandoned = True
        self._wake.set()
        return arrived

    def forward(self) -> bool:
        """Send what is there now; True where everything visible has arrived. Raises nothing for a server that is away."""
        try:
            self.send()
        except TrackerUnavailable as error:
            self._attempts += 1
            if self.away_since is None:
                self.away_since = time.monotonic()
                log.warning(
                    "MLflow at %s does not answer; metrics are kept and sent later (%s)", redact(tracking_uri()), error
                )
            return False
        except TrackerRejected as error:
            self.refused = str(error)
            log.warning("%s: MLflow refused the metrics for good, and is not asked again: %s", self.stage, error)
            return False
        if self.away_since is not None:
            log.warning("MLflow answers again after %.0f s", time.monotonic() - self.away_since)
            self.away_since, self._attempts = None, 0
        return True

    def send(self) -> None:
        """Open the run where it is not open, and send what is visible.

        Raises:
            TrackerUnavailable, TrackerRejected: MLflow did not take it; what arrived is remembered.
        """
        with mlflow_errors():
            self._open()
            self._forward(SPOOL)
            self._forward(SYSTEM)

    def _open(self) -> None:
        if self.run_id is not None and not self._checked:
            self._take_up_again()
        if self.opened:
            return
        store = client()
        if self.run_id is None:
            tags = {"whetstone.kind": "stage", "whetstone.stage": self.stage, **self.about.get("tags", {})}
            if self.parent:
                tags["mlflow.parentRunId"] = self.parent
            run = store.create_run(experiment(self.experiment_name), run_name=self.about.get("name"), tags=tags)
            if self._abandoned:  # created after everybody stopped waiting: nobody will ever close it
                store.set_terminated(run.info.run_id, "KILLED")
                raise TrackerUnavailable("the run was opened too late")
            self.run_id = run.info.run_id
            self._save()
        log_params(self.run_id, self.about.get("params", {}))
        inputs = dataset_inputs(self.about.get("datasets", []))
        if inputs:
            store.log_inputs(self.run_id, inputs)
        if self.about.get("models"):
            link_inputs(self.run_id, self.about["models"])
        self.opened = self._checked = True
        self._save()

    def _take_up_again(self) -> None:
        """Mark a resumed run as running; one that the store has lost or deleted is replaced by a new one."""
        assert self.run_id is not None
        try:
            with mlflow_errors():
                client().update_run(self.run_id, status="RUNNING")
                forget(self.run_id, "whetstone.error")  # of the attempt that this one continues
                if self.parent:  # a stage that another pipeline began belongs to the one that goes on with it
                    client().set_tag(self.run_id, "mlflow.parentRunId", self.parent)
        except TrackerRejected as error:
            if not self.about:
                raise
            log.warning("%s: its MLflow run is gone (%s); a new one is opened", self.stage, error)
            self.run_id, self.opened, self.sent = None, False, {SPOOL: 0, SYSTEM: 0}
            self._save()
        self._checked = True

    def _forward(self, name: str) -> None:
        assert self.run_id is not None
        waiting: list[Metric] = []
        offset = self.sent.get(name, 0)
        skipped = 0
        for after, line in visible_lines(self.work, offset, name):
            if line["kind"] == "metrics":
                waiting += [Metric(clean(k), v, line["time"], line["step"]) for k, v in line["values"].items()]
            if (alarm := alarms.alarm_of(line)) is not None:
                key, text = alarms.tag(alarm)
                client().set_tag(self.run_id, key, redact(text))
            skipped += line["kind"] == "broken"
            offset = after
            if len(waiting) >= BATCH:
                self._send(waiting, name, offset, skipped)
                waiting, skipped = [], 0
        if offset != self.sent.get(name, 0):
            self._send(waiting, name, offset, skipped)

    def _send(self, metrics: list[Metric], name: str, offset: int, skipped: int) -> None:
        assert self.run_id is not None
        for start in range(0, len(metrics), 1000):
            client().log_batch(self.run_id, metrics=metrics[start : start + 1000])
        self.sent[name] = offset
        self.broken += skipped
        if skipped:
            log.warning("%s: %d lines of %s could not be read and were skipped", self.stage, self.broken, name)
            with contextlib.suppress(TrackerUnavailable, TrackerRejected), mlflow_errors():
                client().set_tag(self.run_id, "whetstone.broken_lines", str(self.broken))
        self._save()

    def _save(self) -> None:
        with self._lock:
            if self._abandoned:
                raise TrackerUnavailable("nobody waits for it any more")
            body = {"run_id": self.run_id, "opened": self.opened, "sent": self.sent, "broken": self.broken}
            write_atomic(self.work / BOOKMARK, json.dumps(body), durable=False)
