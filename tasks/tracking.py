"""What a pipeline run and its finished stages look like in MLflow. Every function raises `Away` or `Refused`, nothing else of
MLflow's. Stages are followed by `tasks.tracking_stage`; what cannot be sent waits in `tasks.outbox`.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import LoggedModelOutput, Metric

from pipelines.recipe.secrets import redact
from pipelines.stage.files import is_inside, read_json
from tasks.names import clean, flatten
from tasks.patience import Away, Refused
from tasks.tracking_client import client, experiment, talking
from tasks.tracking_stage import StageTracker

log = logging.getLogger("whetstone.tracking")
AWAY = (Away, Refused)


@talking()
def start_pipeline(name: str, experiment_name: str, tags: dict[str, str], recipe_text: str) -> str:
    """Open the parent run of a pipeline; returns its id."""
    store = client()
    run = store.create_run(experiment(experiment_name), run_name=name, tags={"whetstone.kind": "pipeline", **tags})
    store.log_text(run.info.run_id, recipe_text, "recipe.yaml")
    return run.info.run_id


def reopen(run_id: str, tags: dict[str, str]) -> bool:
    """Take up a run that was killed; False where the store does not have it any more.

    Raises:
        Away: the store does not say.
    """
    try:
        with talking():
            to = client()
            to.update_run(run_id, status="RUNNING")
            for key, value in tags.items():
                to.set_tag(run_id, key, value)
    except Refused:
        return False
    return True


def close_abandoned(run_id: str, status: str, reason: str | None) -> bool:
    """End a pipeline's run whose process is gone, and those of its stages that are open; False where there is no such run.

    Raises:
        Away: the store does not answer.
    """
    try:
        with talking():
            to = client()
            run = to.get_run(run_id)
            stages = to.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'")
            for each in (run, *stages):
                if each.info.status == "RUNNING":
                    if reason:
                        to.set_tag(each.info.run_id, "whetstone.error", redact(reason))
                    to.set_terminated(each.info.run_id, status)
    except Refused:
        return False
    return True


@talking()
def end_pipeline(run_id: str, status: str, summary: dict[str, Any], final: dict[str, float]) -> None:
    """Close the parent run with its summary and the final checkpoint's scores."""
    store = client()
    store.log_dict(run_id, summary, "summary.json")
    now = int(time.time() * 1000)
    store.log_batch(run_id, metrics=[Metric(clean(k), v, now, 0) for k, v in final.items()])
    for stage, about in summary.get("stages", {}).items():
        text = f"{about['status']} {about['key']} {about['run_id'] or ''}".strip()
        store.set_tag(run_id, f"whetstone.stage.{stage}", text)
    store.set_terminated(run_id, status)


@talking()
def store(
    run_id: str,
    artifact: Path,
    stage: str,
    *,
    upload_models: bool,
    tags: dict[str, str],
    allow: Callable[[int], None] = lambda size: None,
) -> dict[str, str | None]:
    """Put a finished stage's files under its run, and its `model/` folder into a LoggedModel. Safe to repeat.

    Args:
        allow: told the bytes of each upload before it starts.

    Returns:
        checkpoint name (the stage, or "base") → LoggedModel id.
    """
    mlflow_client = client()
    run = mlflow_client.get_run(run_id)
    ids: dict[str, str | None] = {}
    known = mlflow_client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run_id}'")
    ready_models = {
        m.tags.get("whetstone.checkpoint"): m.model_id for m in known if getattr(m.status, "name", "") == "READY"
    }
    for name, path in (("base", artifact / "base"), (stage, artifact / "model")):
        if not path.is_dir():
            continue
        if name in ready_models:
            ids[name] = ready_models[name]
            continue
        model_tags = {"whetstone.checkpoint": name, **tags}
        model_tags |= {} if upload_models else {"whetstone.path": str(path)}
        model = mlflow_client.create_logged_model(
            run.info.experiment_id, name=f"{run.info.run_name}-{name}"[:250], source_run_id=run_id, tags=model_tags
        )
        if upload_models:
            allow(size_of(path))
            mlflow_client.log_model_artifacts(model.model_id, str(path))
        mlflow_client.finalize_logged_model(model.model_id, "READY")
        ids[name] = model.model_id
    outputs = [LoggedModelOutput(m, 0) for m in ids.values() if m]
    if outputs:
        mlflow_client.log_outputs(run_id, outputs)
    for path in sorted(artifact.iterdir()):
        if path.name in ("model", "base") and path.is_dir():
            continue
        allow(size_of(path))
        if path.is_dir():
            mlflow_client.log_artifacts(run_id, str(path), f"artifact/{path.name}")
        else:
            mlflow_client.log_artifact(run_id, str(path), "artifact")
    return ids


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


@talking()
def close(run_id: str, status: str, tags: dict[str, str]) -> None:
    """End a stage's run. The key tag comes last: a run that has it is complete."""
    to = client()
    for key, value in tags.items():
        to.set_tag(run_id, key, redact(value)[:7900])
    to.set_terminated(run_id, status)


@talking()
def model_scores(model_id: str, run_id: str, task: str, scores: dict[str, float], digest: str) -> None:
    """Attach a checkpoint's scores on one benchmark to its LoggedModel."""
    now = int(time.time() * 1000)
    about = {"model_id": model_id, "dataset_name": task, "dataset_digest": digest[:36], "run_id": run_id}
    client().log_batch(run_id, metrics=[Metric(clean(f"{task}/{k}"), v, now, 0, **about) for k, v in scores.items()])


@talking()
def register(model_id: str, name: str, tags: dict[str, str]) -> str:
    """A new version of a registered model; returns the version. The same model is registered once."""
    to = client()
    if not to.search_registered_models(f"name='{name}'"):
        with contextlib.suppress(mlflow.MlflowException):  # another process registered the name in the meantime
            to.create_registered_model(name)
    for version in to.search_model_versions(f"name='{name}'"):
        if getattr(version, "model_id", None) == model_id or version.tags.get("whetstone.model_id") == model_id:
            return version.version
    source = to.get_logged_model(model_id)
    version = to.create_model_version(
        name, source=f"models:/{model_id}", run_id=source.source_run_id, model_id=model_id,
        tags={**tags, "whetstone.model_id": model_id},
    )  # fmt: skip
    return version.version


@talking()
def find_remote(stage: str, key: str, experiment_name: str) -> tuple[str, str] | None:
    """A finished stage run of that key in the store: (run id, experiment id), or None."""
    to = client()
    known = to.get_experiment_by_name(experiment_name)
    if known is None:
        return None
    wanted = f"tags.`whetstone.key` = '{stage}-{key}' and attributes.status = 'FINISHED'"
    runs = to.search_runs([known.experiment_id], wanted, max_results=1)
    return (runs[0].info.run_id, runs[0].info.experiment_id) if runs else None


@talking()
def fetch(run_id: str, experiment_id: str, into: Path) -> bool:
    """Bring a stage's files back from the store into a folder; False where they are not in the store, or not to be trusted.

    Only what was announced under the run is downloaded, and no name may lead out of the folder. The caller checks the
    contents against the key that it wanted.
    """
    to = client()
    scrap = into.with_name(into.name + ".download")
    shutil.rmtree(scrap, ignore_errors=True)
    scrap.mkdir(parents=True)
    try:
        if not _names_stay_inside(to, run_id, "artifact"):
            log.warning(
                "the artifact of run %s in MLflow holds a path that leads out of its folder; it is not used", run_id
            )
            return False
        shutil.copytree(to.download_artifacts(run_id, "artifact", str(scrap)), into, dirs_exist_ok=True, symlinks=True)
        for model in to.search_logged_models([experiment_id], f"source_run_id = '{run_id}'"):
            if "whetstone.path" in model.tags:
                return False
            is_base = model.tags.get("whetstone.checkpoint") == "base"
            place = scrap / ("model-base" if is_base else "model-trained")
            source = mlflow.artifacts.download_artifacts(artifact_uri=model.artifact_location, dst_path=str(place))
            shutil.copytree(source, into / ("base" if is_base else "model"), dirs_exist_ok=True, symlinks=True)
        return True
    finally:
        shutil.rmtree(scrap, ignore_errors=True)


def _names_stay_inside(to: Any, run_id: str, folder: str) -> bool:
    """Whether every file that the store announces below a folder really lies below it."""
    for entry in to.list_artifacts(run_id, folder):
        if not is_inside(entry.path) or not entry.path.startswith(f"{folder}/"):
            return False
        if entry.is_dir and not _names_stay_inside(to, run_id, entry.path):
            return False
    return True


@talking()
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


@talking()
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
        "name": run.info.run_name,
        "status": run.info.status,
        "started": run.info.start_time / 1000,
        "seconds": (end - run.info.start_time) / 1000 if end else None,
        "metrics": dict(run.data.metrics),
        "tags": {k: v for k, v in run.data.tags.items() if k.startswith("whetstone.")},
    }


@talking()
def metric_history(run_id: str, name: str) -> list[tuple[int, float]]:
    """(step, value) of a metric, in order."""
    return [(m.step, m.value) for m in client().get_metric_history(run_id, name)]


__all__ = [
    "AWAY", "StageTracker", "client", "close", "close_abandoned", "end_pipeline", "experiment", "fetch", "find_remote", "flatten",
    "metric_history", "model_scores", "recent", "register", "reopen", "show", "start_pipeline", "store",
]  # fmt: skip
