"""Runs and artifacts of other project folders, fetched from MLflow for commands that read them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tasks import environment
from tasks.environment import records_folder, runs_folder
from tasks.store import artifacts
from tasks.store.artifacts import Artifact
from tasks.tracking import fetch, lookup
from tasks.tracking.time_budget import TimeBudget, TrackerError

log = logging.getLogger("whetstone.brought")
Progress = Callable[[str], None]
T = TypeVar("T")
PATIENCE_S = 60.0
"""Most seconds of waiting for MLflow while one artifact is fetched."""


def experiment_of(run: dict[str, Any]) -> str:
    """The MLflow experiment of a run, as far as the run says."""
    return str(run.get("experiment") or run["tags"].get("whetstone.recipe") or run["name"])


def remote_run(prefix: str) -> dict[str, Any] | None:
    """The run that MLflow lists under the first characters of an id; None where it is no id, or MLflow has no such run.

    Raises:
        Unreachable: MLflow does not answer.
    """
    if not re.fullmatch("[0-9a-f]{4,32}", prefix) or not _asks():
        return None
    try:
        return lookup.find_in_mlflow(prefix)
    except lookup.NoSuchRun:
        return None


def remote_runs(experiment: str | None = None) -> Iterator[dict[str, Any]]:
    """The pipeline runs that MLflow lists, newest first, each with its summary, read as it is asked for.

    Raises:
        Unreachable: MLflow does not answer.
    """
    for run in lookup.mlflow_runs(experiment) if _asks() else []:
        yield lookup.find_in_mlflow(run["run_id"])


def stages(run: dict[str, Any], names: Iterable[str], progress: Progress = lambda what: None) -> bool:
    """Fetch the artifacts of a run's stages that are not here; whether any came.

    What MLflow does not have is left out: whoever reads it says that it is not here.
    """
    entries = (run.get("summary") or {}).get("stages") or {}
    came = False
    for name in names:
        about = entries[name]
        kind, key = str(about["kind"]), str(about.get("key"))
        if about.get("run_id") and not artifacts.folder(runs_folder(), kind, key).is_dir() and _asks():
            came |= artifact(kind, key, experiment_of(run), progress) is not None
    return came


def records(run: dict[str, Any], names: Iterable[str], progress: Progress = lambda what: None) -> None:
    """Fetch manifest and report of a run's stages that are not here: their settings, curves, rollouts and cost, without weights.

    What MLflow does not have is left out: whoever reads it says that it is not here.
    """
    entries = (run.get("summary") or {}).get("stages") or {}
    experiment = experiment_of(run)
    for about in [entries[name] for name in names if entries[name].get("run_id")]:
        kind, key = str(about["kind"]), str(about.get("key"))
        if place(kind, key) is None and _asks():
            _record(kind, key, experiment, progress)


def place(kind: str, key: str) -> Path | None:
    """The folder of an artifact that is here, else of its manifest and report alone; None where neither is."""
    places = [artifacts.folder(runs, kind, key) for runs in (runs_folder(), records_folder())]
    return next((folder for folder in places if folder.is_dir()), None)


def artifact(kind: str, key: str, experiment: str, progress: Progress = lambda what: None) -> Artifact | None:
    """One artifact from MLflow, held against its key; None where MLflow has none that can be used, or does not say."""
    what = artifacts.name_of(kind, key)
    return _bring(what, lambda: fetch.from_mlflow(kind, key, experiment, TimeBudget(PATIENCE_S)), progress)


def _record(kind: str, key: str, experiment: str, progress: Progress) -> None:
    what = f"the report of {artifacts.name_of(kind, key)}"
    _bring(what, lambda: (None, fetch.record_from_mlflow(kind, key, experiment, TimeBudget(PATIENCE_S))), progress)


def _bring(what: str, ask: Callable[[], tuple[T | None, str | None]], progress: Progress) -> T | None:
    """What MLflow was asked for; a warning says why there is none, unless MLflow just has none."""
    progress(f"fetching {what} from MLflow")
    environment.prepare()
    try:
        fetched, mismatch = ask()
    except (TrackerError, environment.Unreachable) as error:
        fetched, mismatch = None, str(error)
    if mismatch is not None:
        log.warning("%s was not fetched from MLflow: %s", what, mismatch)
    return fetched


def _asks() -> bool:
    """Whether there is a store to ask: an embedded one that nobody has made is empty."""
    database = environment.database()
    return database is None or database.is_file()
