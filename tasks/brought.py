"""Runs and artifacts of other project folders, fetched from MLflow for commands that read them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tasks import environment
from tasks.environment import records_folder, runs_folder
from tasks.store import artifacts
from tasks.store.artifacts import Artifact
from tasks.tracking import fetch, lookup
from tasks.tracking.time_budget import TimeBudget, TrackerError

log = logging.getLogger("whetstone.brought")
Progress = Callable[[str], None]


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
    for kind, key in [
        (str(entries[name]["kind"]), str(entries[name].get("key"))) for name in names if entries[name].get("run_id")
    ]:
        name = artifacts.name_of(kind, key)
        if not any((folder / name).is_dir() for folder in (runs_folder(), records_folder())) and _asks():
            progress(f"fetching the report of {name} from MLflow")
            environment.prepare()
            try:
                missing = fetch.record_from_mlflow(kind, key, experiment_of(run), TimeBudget(60.0))
            except (TrackerError, environment.Unreachable) as error:
                missing = str(error)
            if missing is not None:
                log.warning("the report of %s was not fetched from MLflow: %s", name, missing)


def artifact(kind: str, key: str, experiment: str, progress: Progress = lambda what: None) -> Artifact | None:
    """One artifact from MLflow, held against its key; None where MLflow has none that can be used, or does not say."""
    name = artifacts.name_of(kind, key)
    progress(f"fetching {name} from MLflow")
    environment.prepare()
    try:
        fetched, mismatch = fetch.from_mlflow(kind, key, experiment, TimeBudget(60.0))
    except (TrackerError, environment.Unreachable) as error:
        fetched, mismatch = None, str(error)
    if mismatch is not None:
        log.warning("%s was not fetched from MLflow: %s", name, mismatch)
    return fetched


def _asks() -> bool:
    """Whether there is a store to ask: an embedded one that nobody has made is empty."""
    database = environment.database()
    return database is None or database.is_file()
