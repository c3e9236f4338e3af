"""The only file that talks to MLflow. Training never waits for it: what it cannot take now is sent later.

A stage's process writes metrics with fixed timestamps to a spool. `StageTracker` forwards the spool and
remembers how far it got in a file, so a restart sends nothing twice, and a server that is away for a
while costs nothing. What is still unsent when a stage ends is kept as a debt and paid at the next start.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric, Param
from mlflow.exceptions import MlflowException

from pipelines.stage.files import read_json, write_atomic
from pipelines.stage.process import SYSTEM
from pipelines.stage.report import SPOOL, visible_lines
from tasks.environment import home, tracking_uri

log = logging.getLogger("whetstone.tracking")
RETRY_S = 3.0
BATCH = 500
AWAY = (MlflowException, OSError, ConnectionError)


def client() -> MlflowClient:
    """A client of the store that the environment names."""
    uri = tracking_uri()
    mlflow.set_tracking_uri(uri)
    return MlflowClient(tracking_uri=uri)


def experiment(name: str) -> str:
    """Id of an experiment, made where it is missing; the embedded store keeps artifacts in the project folder."""
    made = client()
    found = made.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    location = None if tracking_uri().startswith("http") else (home() / "mlartifacts").as_uri()
    with contextlib.suppress(MlflowException):
        return made.create_experiment(name, artifact_location=location)
    found = made.get_experiment_by_name(name)
    assert found is not None
    return found.experiment_id


def start_pipeline(name: str, experiment_name: str, tags: dict[str, str], recipe_text: str) -> str:
    """Open the parent run of a pipeline; returns its id."""
    made = client()
    run = made.create_run(experiment(experiment_name), run_name=name, tags={"whetstone.kind": "pipeline", **tags})
    made.log_text(run.info.run_id, recipe_text, "recipe.yaml")
    return run.info.run_id


def reopen(run_id: str, tags: dict[str, str]) -> bool:
    """Take up a run that was killed; False where the store does not have it."""
    made = client()
    try:
        made.update_run(run_id, status="RUNNING")
        for key, value in tags.items():
            made.set_tag(run_id, key, value)
        return True
    except AWAY:
        return False


def close_abandoned(run_id: str, status: str, reason: str | None) -> bool:
    """End a pipeline's run whose process is gone, and those of its stages that are open; False where there is no such run."""
    made = client()
    try:
        run = made.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    stages = made.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'")
    for each in (run, *stages):
        if each.info.status == "RUNNING":
            if reason:
                made.set_tag(each.info.run_id, "whetstone.error", reason)
            made.set_terminated(each.info.run_id, status)
    return True


def end_pipeline(run_id: str, status: str, summary: dict[str, Any], final: dict[str, float]) -> None:
    """Close the parent run with its summary and the final checkpoint's scores."""
    made = client()
    made.log_dict(run_id, summary, "summary.json")
    now = int(time.time() * 1000)
    made.log_batch(run_id, metrics=[Metric(clean(k), v, now, 0) for k, v in final.items()])
    for stage, about in summary.get("stages", {}).items():
        made.set_tag(
            run_id, f"whetstone.stage.{stage}", f"{about['status']} {about['key']} {about['run_id'] or ''}".strip()
        )
    made.set_terminated(run_id, status)


def clean(name: str) -> str:
    """A metric name in MLflow's alphabet."""
    return re.sub(r"[^\w\-./ :]", "_", name)


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted parameters."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(value) if isinstance(value, list | dict) else str(value)


class StageTracker:
    """The MLflow run of one stage: opened late, fed from the spool, closed when everything has arrived.

    Args:
        stage: its name.
        work: the stage's work folder; holds the spool and this class's bookmark.
        experiment_name: where the run goes.
        parent: id of the pipeline's run, or None.
        about: run name, parameters, tags and dataset inputs, written when the run is opened.
    """

    def __init__(self, stage: str, work: Path, experiment_name: str, parent: str | None, about: dict[str, Any]) -> None:
        self.stage, self.work, self.experiment_name, self.parent, self.about = (
            stage,
            work,
            experiment_name,
            parent,
            about,
        )
        self.bookmark = work / "sent.json"
        kept = read_json(self.bookmark) or {}
        self.run_id: str | None = kept.get("run_id")
        self.opened: bool = kept.get("opened", False)
        self.sent: dict[str, int] = kept.get("sent", {SPOOL: 0, SYSTEM: 0})
        self._quiet_until = 0.0
        self._checked = False
        self.away_since: float | None = None

    def tick(self, *, now: bool = False) -> bool:
        """Forward what is there; True where everything visible has been sent. Never raises for an absent server.

        Does nothing for a moment after the last call, unless `now`.
        """
        if time.monotonic() < self._quiet_until and not now:
            return False
        try:
            self._open()
            self._forward(SPOOL)
            self._forward(SYSTEM)
        except AWAY as error:
            if self.away_since is None:
                self.away_since = time.monotonic()
                log.warning(
                    "MLflow at %s does not answer; metrics are kept and sent later (%s)", tracking_uri(), _first(error)
                )
            self._quiet_until = time.monotonic() + RETRY_S
            return False
        if self.away_since is not None:
            log.warning("MLflow answers again after %.0f s", time.monotonic() - self.away_since)
            self.away_since = None
        self._quiet_until = time.monotonic() + 0.5
        return True

    def _open(self) -> None:
        if self.run_id is not None and not self._checked:
            if self.opened:
                with contextlib.suppress(MlflowException):
                    client().update_run(self.run_id, status="RUNNING")
                    if self.parent:  # a stage that another pipeline began belongs to the one that goes on with it
                        client().set_tag(self.run_id, "mlflow.parentRunId", self.parent)
            self._checked = True
        if self.opened:
            return
        made = client()
        if self.run_id is None:
            tags = {"whetstone.kind": "stage", "whetstone.stage": self.stage, **self.about.get("tags", {})}
            if self.parent:
                tags["mlflow.parentRunId"] = self.parent
            run = made.create_run(experiment(self.experiment_name), run_name=self.about["name"], tags=tags)
            self.run_id = run.info.run_id
            self._save()
        params = [Param(key, text[:6000]) for key, text in self.about.get("params", {}).items()]
        for start in range(0, len(params), 100):
            made.log_batch(self.run_id, params=params[start : start + 100])
        inputs = [
            DatasetInput(Dataset(d["name"], d["digest"], "local", json.dumps({"uri": d["source"]}), None, d.get("profile")),
                         [InputTag("mlflow.data.context", d["context"])])
            for d in self.about.get("datasets", [])
        ]  # fmt: skip
        if inputs:
            made.log_inputs(self.run_id, inputs)
        self.opened = self._checked = True
        self._save()

    def _forward(self, name: str) -> None:
        waiting: list[Metric] = []
        offset = self.sent.get(name, 0)
        for after, line in visible_lines(self.work, offset, name):
            if line["kind"] == "metrics":
                waiting += [Metric(clean(k), v, line["time"], line["step"]) for k, v in line["values"].items()]
            offset = after
            if len(waiting) >= BATCH:
                self._send(waiting, name, offset)
                waiting = []
        if offset != self.sent.get(name, 0):
            self._send(waiting, name, offset)

    def _send(self, metrics: list[Metric], name: str, offset: int) -> None:
        assert self.run_id is not None
        for start in range(0, len(metrics), 1000):
            client().log_batch(self.run_id, metrics=metrics[start : start + 1000])
        self.sent[name] = offset
        self._save()

    def _save(self) -> None:
        body = {"run_id": self.run_id, "opened": self.opened, "sent": self.sent}
        write_atomic(self.bookmark, json.dumps(body), durable=False)

    def drain(self, timeout_s: float, again: Callable[[], None] | None = None) -> bool:
        """Send the rest, waiting for an absent server at most this long; True where all has arrived."""
        until = time.monotonic() + timeout_s
        while not self.tick(now=self.away_since is None):
            if time.monotonic() > until:
                return False
            if again:
                again()
            time.sleep(0.2)
        return True


def store(
    run_id: str, artifact: Path, stage: str, *, upload_models: bool, tags: dict[str, str]
) -> dict[str, str | None]:
    """Put a finished stage's files under its run, and its `model/` folder into a LoggedModel. Safe to repeat.

    Returns:
        checkpoint name (the stage, or "base") → LoggedModel id.
    """
    made = client()
    run = made.get_run(run_id)
    made_models: dict[str, str | None] = {}
    there = made.search_logged_models([run.info.experiment_id], f"source_run_id = '{run_id}'")
    whole = {m.tags.get("whetstone.checkpoint"): m.model_id for m in there if getattr(m.status, "name", "") == "READY"}
    for name, path in (("base", artifact / "base"), (stage, artifact / "model")):
        if not path.is_dir():
            continue
        if name in whole:
            made_models[name] = whole[name]
            continue
        model_tags = {"whetstone.checkpoint": name, **tags}
        model_tags |= {} if upload_models else {"whetstone.path": str(path)}
        model = made.create_logged_model(
            run.info.experiment_id, name=f"{run.info.run_name}-{name}"[:250], source_run_id=run_id, tags=model_tags
        )
        if upload_models:
            made.log_model_artifacts(model.model_id, str(path))
        made.finalize_logged_model(model.model_id, "READY")
        made_models[name] = model.model_id
    outputs = [LoggedModelOutput(m, 0) for m in made_models.values() if m]
    if outputs:
        made.log_outputs(run_id, outputs)
    for path in sorted(artifact.iterdir()):
        if path.name in ("model", "base") and path.is_dir():
            continue
        if path.is_dir():
            made.log_artifacts(run_id, str(path), f"artifact/{path.name}")
        else:
            made.log_artifact(run_id, str(path), "artifact")
    return made_models


def close(run_id: str, status: str, tags: dict[str, str]) -> None:
    """End a stage's run. The key tag comes last: a run that has it is complete."""
    made = client()
    for key, value in tags.items():
        made.set_tag(run_id, key, value[:7900])
    made.set_terminated(run_id, status)


def model_scores(model_id: str, run_id: str, task: str, scores: dict[str, float], digest: str) -> None:
    """Attach a checkpoint's scores on one benchmark to its LoggedModel."""
    now = int(time.time() * 1000)
    made = client()
    metrics = [
        Metric(
            clean(f"{task}/{k}"),
            v,
            now,
            0,
            model_id=model_id,
            dataset_name=task,
            dataset_digest=digest[:36],
            run_id=run_id,
        )
        for k, v in scores.items()
    ]
    made.log_batch(run_id, metrics=metrics)


def register(model_id: str, name: str, tags: dict[str, str]) -> str:
    """A new version of a registered model; returns the version. The same model is registered once."""
    made = client()
    with contextlib.suppress(MlflowException):
        made.create_registered_model(name)
    for version in made.search_model_versions(f"name='{name}'"):
        if getattr(version, "model_id", None) == model_id or version.tags.get("whetstone.model_id") == model_id:
            return version.version
    version = mlflow.register_model(f"models:/{model_id}", name, tags={**tags, "whetstone.model_id": model_id})
    return version.version


def find_remote(stage: str, key: str, experiment_name: str) -> tuple[str, str] | None:
    """A finished stage run of that key in the store: (run id, experiment id), or None."""
    with contextlib.suppress(*AWAY):
        made = client()
        found = made.get_experiment_by_name(experiment_name)
        if found is None:
            return None
        runs = made.search_runs(
            [found.experiment_id],
            f"tags.`whetstone.key` = '{stage}-{key}' and attributes.status = 'FINISHED'",
            max_results=1,
        )
        if runs:
            return runs[0].info.run_id, runs[0].info.experiment_id
    return None


def fetch(run_id: str, experiment_id: str, into: Path) -> bool:
    """Bring a stage's files back from the store into a folder; False where something is missing."""
    try:
        made = client()
        scrap = into.with_name(into.name + ".download")
        scrap.mkdir(parents=True, exist_ok=True)
        got = Path(made.download_artifacts(run_id, "artifact", str(scrap)))
        shutil.copytree(got, into, dirs_exist_ok=True)
        for model in made.search_logged_models([experiment_id], f"source_run_id = '{run_id}'"):
            name = model.tags.get("whetstone.checkpoint", "")
            if "whetstone.path" in model.tags:
                return False
            target = into / ("base" if name == "base" else "model")
            source = mlflow.artifacts.download_artifacts(
                artifact_uri=model.artifact_location, dst_path=str(scrap / name)
            )
            shutil.copytree(source, target, dirs_exist_ok=True)
        shutil.rmtree(scrap, ignore_errors=True)
        return True
    except AWAY as error:
        log.warning("could not fetch %s from MLflow: %s", run_id, _first(error))
        return False


def recent(experiment_name: str | None, limit: int = 20) -> list[dict[str, Any]]:
    """Pipeline runs, newest first."""
    made = client()
    experiments = [e for e in made.search_experiments() if experiment_name in (None, e.name)]
    runs = made.search_runs(
        [e.experiment_id for e in experiments],
        "tags.`whetstone.kind` = 'pipeline'",
        order_by=["attributes.start_time DESC"],
        max_results=limit,
    )
    return [_run(r) for r in runs]


def show(run_id: str) -> dict[str, Any]:
    """A pipeline run with its stage runs and summary."""
    made = client()
    run = made.get_run(run_id)
    children = made.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'")
    body = _run(run)
    body["stages"] = [_run(r) for r in sorted(children, key=lambda r: r.info.start_time)]
    with contextlib.suppress(*AWAY):
        path = made.download_artifacts(run_id, "summary.json")
        body["summary"] = read_json(Path(path))
    return body


def _run(run: Any) -> dict[str, Any]:
    end = run.info.end_time
    return {
        "run_id": run.info.run_id,
        "name": run.info.run_name,
        "status": run.info.status,
        "started": run.info.start_time / 1000,
        "seconds": (end - run.info.start_time) / 1000 if end else None,
        "metrics": dict(run.data.metrics),
        "tags": {k: v for k, v in run.data.tags.items() if k.startswith("whetstone.")},
    }


def metric_history(run_id: str, name: str) -> list[tuple[int, float]]:
    """(step, value) of a metric, in order."""
    return [(m.step, m.value) for m in client().get_metric_history(run_id, name)]


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
