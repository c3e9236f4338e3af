"""A stage's artifact from MLflow, where another machine put it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipelines.base.files import publish
from tasks.environment import records_folder, runs_folder
from tasks.store import artifacts, index
from tasks.store.artifacts import Artifact
from tasks.tracking import outbox
from tasks.tracking.time_budget import TimeBudget


def record_from_mlflow(stage: str, key: str, experiment: str, patience: TimeBudget) -> str | None:
    """Put the manifest and the report of a stage into `records_folder()`: all that a page or a comparison reads, without weights.

    Args:
        experiment: in which the stage's run is.

    Returns:
        Why there is none, in words; None where it is there now.

    Raises:
        TrackerError: MLflow does not answer, or refuses.
    """
    from tasks.tracking import api as tracking

    name = artifacts.name_of(stage, key)
    with _scratch(f"{name}.record") as folder:
        remote = patience.run(lambda: tracking.find_remote(stage, key, experiment))
        if remote is None:
            return "MLflow has no such stage"
        folder.mkdir(parents=True)
        if not patience.run(lambda: tracking.fetch_record(remote[0], folder), growing=lambda: tracking.size_of(folder)):
            return "MLflow holds no files of it"
        mismatch = artifacts.foreign_record(folder, stage, key)
        if mismatch is None:
            records_folder().mkdir(exist_ok=True)
            publish(folder, records_folder() / name)
        return mismatch


def from_mlflow(stage: str, key: str, experiment: str, patience: TimeBudget) -> tuple[Artifact | None, str | None]:
    """The artifact, held against the key that was wanted and published here; or None, and what is wrong with MLflow's
    (None: it holds none).

    Args:
        experiment: in which the stage's run is.

    Raises:
        TrackerError: MLflow does not answer, or refuses.
    """
    from tasks.tracking import api as tracking

    final = artifacts.folder(runs_folder(), stage, key)
    with _scratch(final.name, goes_on=True) as folder:
        remote = patience.run(lambda: tracking.find_remote(stage, key, experiment))
        if remote is None:
            return None, None
        arriving = folder.parent  # finished files, and beside them those that are on their way
        if not patience.run(lambda: tracking.fetch(*remote, folder), growing=lambda: tracking.size_of(arriving)):
            return None, None
        mismatch = artifacts.foreign(folder, stage, key)
        if mismatch is not None:
            return None, mismatch
        index.begin()  # from what is here: what comes belongs to another project folder's run
        publish(folder, final)
        outbox.remember(final, remote[0])
    return artifacts.find(runs_folder(), stage, key)


@contextlib.contextmanager
def _scratch(name: str, *, goes_on: bool = False) -> Iterator[Path]:
    """A place for what arrives, gone afterwards.

    Args:
        goes_on: what has arrived is kept where an error or a kill breaks the download off; else the place is empty at first.
    """
    folder = runs_folder() / ".fetched" / name
    for left in [*([] if goes_on else [folder]), *folder.parent.glob(f"{name}.download-*")]:
        shutil.rmtree(left, ignore_errors=True)
    broken_off = goes_on
    try:
        yield folder
        broken_off = False
    finally:
        if not broken_off:
            shutil.rmtree(folder, ignore_errors=True)
