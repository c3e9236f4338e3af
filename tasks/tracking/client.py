"""The MLflow client: made whole or not at all, its errors sorted into "try again" and "for good"."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
from google.protobuf.json_format import ParseError
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Param
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from pipelines.base.files import disk_full
from pipelines.base.secrets import redact
from tasks.environment import database, home, tracking_uri
from tasks.tracking.time_budget import TrackerError, TrackerRejected, TrackerUnavailable

logging.getLogger("mlflow.store.db.utils").setLevel(
    logging.CRITICAL
)  # it prints each error's traceback before it raises it
FOR_GOOD = (400, 403, 404, 405, 410, 413, 422)
"""HTTP statuses that the same request will get again."""
ERRORS = (MlflowException, SQLAlchemyError, ParseError, OSError)


def client() -> MlflowClient:
    """A client of the store that the environment names; the embedded database is made if it is missing."""
    uri = tracking_uri()
    embedded = database()
    if embedded is not None and not embedded.exists():
        _make_database(embedded)
    mlflow.set_tracking_uri(uri)
    return MlflowClient(tracking_uri=uri)


def open_embedded() -> None:
    """Open the embedded store, which takes a second, and several where it is made; whoever uses it says what is wrong with it."""
    if database() is not None:
        with contextlib.suppress(*ERRORS):
            client()


def _make_database(path: Path) -> None:
    """Create MLflow's SQLite database beside its place and move it there whole: a full disk leaves none, not a half."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path.parent.mkdir(parents=True, exist_ok=True)
    building = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        new_store = SqlAlchemyStore(f"sqlite:///{building}", (home() / "mlartifacts").as_uri())
        new_store.engine.dispose()
        if not path.exists():
            os.rename(building, path)
    finally:
        for scrap in path.parent.glob(f"{building.name}*"):
            scrap.unlink(missing_ok=True)


@contextlib.contextmanager
def mlflow_errors() -> Iterator[None]:
    """Turns what MLflow's client raises into `TrackerUnavailable` or `TrackerRejected`.

    Raises:
        TrackerUnavailable: no answer, 401, 429, 5xx, a locked or full database.
        TrackerRejected: the server or the store says no, for good.
    """
    try:
        yield
    except TrackerError:
        raise
    except ERRORS as error:
        raise sort(error) from error


def sort(error: BaseException) -> TrackerError:
    """The error as `TrackerUnavailable` or `TrackerRejected`, with one line that holds no secret."""
    full = disk_full(error, home())
    if full is not None:
        return TrackerUnavailable(str(full))
    status = _status(error)
    text = first_line(error)
    if status in FOR_GOOD:
        return TrackerRejected(text)
    if status == 401:
        return TrackerUnavailable(f"it refuses the user or the password (401); {text}")
    return TrackerUnavailable(text)


def _status(error: BaseException) -> int | None:
    named = re.search(r"failed with error code (\d{3})", str(error))
    if named:
        return int(named[1])
    answer = getattr(error, "response", None)
    if answer is not None and getattr(answer, "status_code", None):
        return int(answer.status_code)
    return error.get_http_status_code() if isinstance(error, MlflowException) else None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, short and without secrets."""
    return redact((str(error).strip().splitlines() or [type(error).__name__])[0])[:200]


def experiment(name: str) -> str:
    """Id of an experiment, made where it is missing; the embedded store keeps artifacts in the project folder.

    Raises:
        TrackerRejected: it was deleted.
    """
    store = client()
    known = store.get_experiment_by_name(name)
    if known is None:
        location = None if tracking_uri().startswith("http") else (home() / "mlartifacts").as_uri()
        with contextlib.suppress(MlflowException):  # another process made it in the meantime: looked up again below
            return store.create_experiment(name, artifact_location=location)
        known = store.get_experiment_by_name(name)
    if known is None:
        raise TrackerUnavailable(f"it made no experiment {name!r} and names no reason")
    if known.lifecycle_stage == "deleted":
        raise TrackerRejected(
            f"the experiment {name!r} was deleted. Restore it (`mlflow experiments restore -x {known.experiment_id}`), or set "
            "tracking.experiment to another name."
        )
    return known.experiment_id


def dataset_inputs(datasets: list[dict[str, Any]]) -> list[DatasetInput]:
    """Data that a run reads, as MLflow takes it.

    Args:
        datasets: name, digest, source, context ("training" or "evaluation") and optionally profile (JSON text) of each.
    """
    return [
        DatasetInput(
            Dataset(d["name"], d["digest"][:36], "local", json.dumps({"uri": d["source"]}), None, d.get("profile")),
            [InputTag("mlflow.data.context", d["context"])],
        )
        for d in datasets
    ]


def forget(run_id: str, tag: str) -> None:
    """Take a tag off a run that may have it."""
    if tag in client().get_run(run_id).data.tags:
        client().delete_tag(run_id, tag)


def log_params(run_id: str, params: dict[str, str]) -> None:
    """Parameters of a run, a hundred a call (MLflow's limit). The same ones may be sent again."""
    entries = [Param(key, text[:6000]) for key, text in params.items()]
    for start in range(0, len(entries), 100):
        client().log_batch(run_id, params=entries[start : start + 100])
