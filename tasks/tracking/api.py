"""MLflow, as the rest of the project sees it: every function raises `TrackerUnavailable` or `TrackerRejected`, nothing else of MLflow's.

Pipelines are in `tasks.tracking.pipeline_run`, stages in `tasks.tracking.stage_run`, checkpoints in `tasks.tracking.models`, evaluations in
`tasks.tracking.evaluation`; what cannot be sent waits in `tasks.tracking.outbox`.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow

from pipelines.base.files import MANIFEST, REPORT, file_sha256, is_inside, read_manifest
from pipelines.base.secrets import redact
from tasks.store.artifacts import name_of
from tasks.tracking.client import client, experiment, mlflow_errors, open_embedded
from tasks.tracking.evaluation import record_evaluation
from tasks.tracking.models import (
    external_base,
    link_inputs,
    model_of,
    register,
    size_of,
    store,
)
from tasks.tracking.names import flatten
from tasks.tracking.pipeline_run import (
    close_abandoned,
    end_pipeline,
    experiment_of,
    recent,
    reopen,
    show,
    start_pipeline,
)
from tasks.tracking.stage_run import StageTracker
from tasks.tracking.time_budget import TrackerRejected, TrackerUnavailable
from tasks.tracking.traces import send_shown

log = logging.getLogger("whetstone.tracking")
DOWNLOADS = 8
"""Files that are downloaded side by side."""
TRACKER_ERRORS = (TrackerUnavailable, TrackerRejected)


@mlflow_errors()
def close(run_id: str, status: str, tags: dict[str, str], texts: dict[str, str] | None = None) -> None:
    """End a stage's run. The key tag comes last: a run that has it is complete.

    Args:
        texts: file below the run → what is written into it.
    """
    to = client()
    for file, text in (texts or {}).items():
        to.log_text(run_id, text, file)
    for key, value in tags.items():
        to.set_tag(run_id, key, redact(value)[:7900])
    to.set_terminated(run_id, status)


@mlflow_errors()
def store_text(run_id: str, file: str, text: str) -> None:
    """Put a file among those of a run; one of that name is replaced."""
    client().log_text(run_id, text, file)


@mlflow_errors()
def find_remote(stage: str, key: str, experiment_name: str) -> tuple[str, str] | None:
    """A finished stage run of that key in the store: (run id, experiment id), or None.

    Its own experiment is asked first, then all others: a stage may have been reused from another recipe's.
    """
    to = client()
    wanted = f"tags.`whetstone.key` = '{name_of(stage, key)}' and attributes.status = 'FINISHED'"
    known = to.get_experiment_by_name(experiment_name) if experiment_name else None
    runs = list(to.search_runs([known.experiment_id], wanted, max_results=1)) if known else []
    if not runs:
        others = [e.experiment_id for e in _experiments(to) if known is None or e.experiment_id != known.experiment_id]
        runs = list(to.search_runs(others, wanted, max_results=1)) if others else []
    return (runs[0].info.run_id, runs[0].info.experiment_id) if runs else None


def _experiments(to: Any) -> Iterator[Any]:
    """All active experiments, page by page."""
    token = None
    while True:
        page = to.search_experiments(max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


@mlflow_errors()
def fetch_record(run_id: str, into: Path) -> bool:
    """Bring a stage's manifest and report from the store into a folder; False where they are not there, or not to be trusted."""
    to = client()
    if _names(to, run_id, "artifact") is None:
        return False
    wanted = {f"artifact/{MANIFEST}", f"artifact/{REPORT}"}
    for path in [entry.path for entry in to.list_artifacts(run_id, "artifact") if entry.path in wanted]:
        arrived = Path(to.download_artifacts(run_id, path, str(into)))
        if arrived.parent != into:
            arrived.rename(into / arrived.name)
            arrived.parent.rmdir()
    return (into / MANIFEST).is_file()


@mlflow_errors()
def fetch(run_id: str, experiment_id: str, into: Path) -> bool:
    """Bring a stage's files back from the store into a folder; False where they are not in the store, or not to be trusted.

    Files that are there already with the contents that the manifest tells are kept, so a download that was broken off goes on. No name may
    lead out of the folder. The caller checks the contents against the key that it wanted.
    """
    to = client()
    names = _names(to, run_id, "artifact")
    if names is None:
        log.warning(
            "the artifact of run %s in MLflow holds a path that leads out of its folder; it is not used", run_id
        )
        return False
    if f"artifact/{MANIFEST}" not in names:
        return False
    models: dict[str, str] = {}
    for model in to.search_logged_models([experiment_id], f"source_run_id = '{run_id}'"):
        if "whetstone.path" in model.tags:
            return False
        models["base" if model.tags.get("whetstone.checkpoint") == "base" else "model"] = model.artifact_location
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix=f"{into.name}.download-") as scrap:
        _bring(lambda place: to.download_artifacts(run_id, f"artifact/{MANIFEST}", place), into / MANIFEST, scrap)
        files = (read_manifest(into) or {}).get("files") or {}
        if not all(map(is_inside, files)):
            return False
        with ThreadPoolExecutor(DOWNLOADS) as pool:
            waiting = [
                pool.submit(_bring, source, into / name, scrap, files[name])
                for name in files
                if (source := _source(to, run_id, name, names, models)) is not None
            ]
            for each in waiting:
                each.result()
    for path in into.rglob("*"):  # of another attempt, for a version of the artifact that is gone
        if path.is_file() and path.relative_to(into).as_posix() not in {*files, MANIFEST}:
            path.unlink()
    return True


def _source(
    to: Any, run_id: str, name: str, names: Collection[str], models: Mapping[str, str]
) -> Callable[[str], str] | None:
    """What downloads a file of an artifact into a folder; None where the store does not have it.

    Args:
        names: files of the run.
        models: `base` and `model` → where the store has that model's files.
    """
    if f"artifact/{name}" in names:
        return lambda place: str(to.download_artifacts(run_id, f"artifact/{name}", place))
    first, _, rest = name.partition("/")
    if first not in models:
        return None
    uri = f"{models[first]}/{rest}"
    return lambda place: str(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=place))


def _bring(source: Callable[[str], str], path: Path, scrap: str, entry: Mapping[str, Any] | None = None) -> None:
    """Download a file, which is whole as soon as it is there.

    Args:
        entry: what the manifest says of it; a file that is there and has this content is kept.
    """
    if (
        entry is not None
        and path.is_file()
        and path.stat().st_size == entry["bytes"]
        and file_sha256(path) == entry["sha256"]
    ):
        return
    arrived = source(tempfile.mkdtemp(dir=scrap))
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(arrived, path)


def _names(to: Any, run_id: str, folder: str) -> list[str] | None:
    """Every file that the store announces below a folder; None where one does not really lie below it."""
    names: list[str] = []
    for entry in to.list_artifacts(run_id, folder):
        if not is_inside(entry.path) or not entry.path.startswith(f"{folder}/"):
            return None
        below = _names(to, run_id, entry.path) if entry.is_dir else [entry.path]
        if below is None:
            return None
        names += below
    return names


@mlflow_errors()
def metric_history(run_id: str, name: str) -> list[tuple[int, float]]:
    """(step, value) of a metric, in order."""
    return [(m.step, m.value) for m in client().get_metric_history(run_id, name)]


__all__ = [
    "TRACKER_ERRORS", "StageTracker", "client", "close", "close_abandoned", "end_pipeline", "experiment",
    "experiment_of", "external_base", "fetch", "fetch_record", "find_remote", "flatten", "link_inputs", "metric_history", "model_of",
    "open_embedded", "recent", "record_evaluation", "register", "reopen", "send_shown", "show", "size_of", "start_pipeline",
    "store", "store_text",
]  # fmt: skip
