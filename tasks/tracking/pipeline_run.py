"""The parent run of a pipeline in MLflow: opened with its parameters, closed with its scores, listed and read back."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import LoggedModelOutput, Metric

from pipelines.base.files import read_json
from pipelines.base.secrets import redact
from tasks.tracking import description, links
from tasks.tracking.client import client, dataset_inputs, experiment, forget, log_params, mlflow_errors
from tasks.tracking.models import model_of, register
from tasks.tracking.time_budget import TrackerRejected
from tasks.tracking.views import update_views

NOTE, ERROR = "mlflow.note.content", "whetstone.error"


@mlflow_errors()
def start_pipeline(
    name: str, experiment_name: str, tags: dict[str, str], params: dict[str, str], recipe_text: str
) -> str:
    """Open the parent run of a pipeline; returns its id."""
    store = client()
    if text := description.opened(tags):
        tags = {**tags, NOTE: text}
    experiment_id = experiment(experiment_name)
    run = store.create_run(experiment_id, run_name=name, tags={"whetstone.kind": "pipeline", **tags})
    log_params(run.info.run_id, params)
    store.log_text(run.info.run_id, recipe_text, "recipe.yaml")
    return run.info.run_id


@mlflow_errors()
def experiment_of(run_id: str) -> str:
    """Id of the experiment that holds a run."""
    return client().get_run(run_id).info.experiment_id


def reopen(run_id: str, tags: dict[str, str]) -> bool:
    """Take up a run that was killed; False where the store does not have it any more.

    Raises:
        TrackerUnavailable: the store does not say.
    """
    try:
        with mlflow_errors():
            to = client()
            to.update_run(run_id, status="RUNNING")
            for key, value in tags.items():
                to.set_tag(run_id, key, value)
            forget(run_id, ERROR)
    except TrackerRejected:
        return False
    return True


def close_abandoned(run_id: str, status: str, reason: str | None) -> bool:
    """End a pipeline's run whose process is gone, and those of its stages that are open; False where there is no such run.

    Raises:
        TrackerUnavailable: the store does not answer.
    """
    try:
        with mlflow_errors():
            to = client()
            run = to.get_run(run_id)
            stages = to.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'")
            for each in (run, *stages):
                if each.info.status == "RUNNING":
                    if reason:
                        to.set_tag(each.info.run_id, "whetstone.error", redact(reason))
                    to.set_terminated(each.info.run_id, status)
    except TrackerRejected:
        return False
    return True


@mlflow_errors()
def end_pipeline(run_id: str, status: str, body: dict[str, Any]) -> None:
    """Close the parent run with its scores, description, inputs and outputs. Safe to repeat: nothing is logged twice.

    Args:
        body: `summary`; `metrics` in the order in which they are to be seen; `time` of all of them in ms; and optionally
            `datasets`, `checkpoints` (name → where its model is, in the order of the chain), `answers` (checkpoint →
            run with its answers), `register` (name and tags of the registered model) and `origin` (tags that say what started it).
    """
    store = client()
    run = store.get_run(run_id)
    experiment_id = run.info.experiment_id
    summary = body["summary"]
    store.log_dict(run_id, summary, "summary.json")
    told = run.data.metrics
    metrics = {name: value for name, value in body["metrics"].items() if told.get(name) != value}
    store.log_batch(run_id, metrics=[Metric(name, value, body["time"], 0) for name, value in metrics.items()])
    inputs = dataset_inputs(body.get("datasets") or [])
    if inputs:
        store.log_inputs(run_id, inputs)
    models = {name: model_of(name, **where) for name, where in (body.get("checkpoints") or {}).items()}
    outputs = {m.model_id for m in (run.outputs.model_outputs if run.outputs else [])}
    trained = [(n, m) for n, m in models.items() if m and n != "base" and m[0] not in outputs]
    if trained:
        store.log_outputs(run_id, [LoggedModelOutput(model_id, step) for _, (model_id, step) in trained])
    last = list(models.values())[-1] if models else None
    if body.get("register") and last is not None:
        address = links.inside(links.run(experiment_id, run_id))
        about = description.version(summary, run.info.run_name, body.get("datasets") or [], address)
        register(last[0], body["register"]["name"], body["register"]["tags"] | about[1], about[0])
    store.set_tag(run_id, NOTE, redact(_note(summary, experiment_id, body))[: description.MOST])
    if failed := summary.get("failed"):
        where = f"{failed['stage']}: " if failed.get("stage") else ""
        store.set_tag(run_id, ERROR, redact(where + failed["error"])[: description.MOST])
    for stage, about in summary.get("stages", {}).items():
        text = f"{about['status']} {about['key']} {about['run_id'] or ''}".strip()
        store.set_tag(run_id, f"whetstone.stage.{stage}", text)
    if status == "FINISHED":
        update_views(experiment_id)
    store.set_terminated(run_id, status)


def _note(summary: dict[str, Any], own: str, body: dict[str, Any]) -> str:
    """The description of a pipeline's run; `own` is its experiment. A reused stage may be in that of another recipe."""
    answers = body.get("answers") or {}
    reused = [s["run_id"] for s in summary.get("stages", {}).values() if s["status"] == "reused" and s.get("run_id")]
    elsewhere = {run: _experiment(run) or own for run in dict.fromkeys([*reused, *answers.values()])}

    def address(run: str) -> str:
        return links.inside(links.run(elsewhere.get(run, own), run))

    def file(run: str, path: str) -> str:
        return links.inside(links.file(elsewhere.get(run, own), run, path))

    beside = {
        f"{before} → {after}": links.inside(links.answers(elsewhere[answers[after]], answers[after], answers[before]))
        for before, after in pairwise(answers)
    }
    curves = links.inside(links.runs(own, links.CURVES_VIEW, charts=True))
    return description.note(summary, address, beside, body.get("origin"), file, curves)


def _experiment(run_id: str) -> str | None:
    """The experiment of a run; None where the store has no such run."""
    try:
        return experiment_of(run_id)
    except TrackerRejected:
        return None


@mlflow_errors()
def recent(experiment_name: str | None, limit: int = 20) -> list[dict[str, Any]]:
    """Pipeline runs, newest first."""
    to = client()
    experiments = [e for e in to.search_experiments() if experiment_name in (None, e.name)]
    runs = to.search_runs(
        [e.experiment_id for e in experiments],
        "tags.`whetstone.kind` = 'pipeline'",
        order_by=["attributes.start_time DESC"],
        max_results=limit,
    )
    return [_run(r) for r in runs]


@mlflow_errors()
def show(run_id: str) -> dict[str, Any]:
    """A pipeline run with its stage runs and summary."""
    to = client()
    run = to.get_run(run_id)
    children = to.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'")
    body = _run(run)
    body["stages"] = [_run(r) for r in sorted(children, key=lambda r: r.info.start_time)]
    with contextlib.suppress(mlflow.MlflowException, OSError):
        body["summary"] = read_json(Path(to.download_artifacts(run_id, "summary.json")))
    return body


def _run(run: Any) -> dict[str, Any]:
    end = run.info.end_time
    return {
        "run_id": run.info.run_id,
        "experiment_id": run.info.experiment_id,
        "name": run.info.run_name,
        "status": run.info.status,
        "started": run.info.start_time / 1000,
        "seconds": (end - run.info.start_time) / 1000 if end else None,
        "metrics": dict(run.data.metrics),
        "tags": {k: v for k, v in run.data.tags.items() if k.startswith("whetstone.")},
    }
