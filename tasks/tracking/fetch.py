"""A stage's artifact from MLflow, where another machine put it."""

from __future__ import annotations

import shutil

from pipelines.base.files import publish
from tasks.environment import runs_folder
from tasks.store import artifacts
from tasks.store.artifacts import Artifact
from tasks.tracking import outbox
from tasks.tracking.time_budget import TimeBudget


def from_mlflow(stage: str, key: str, experiment: str, patience: TimeBudget) -> tuple[Artifact | None, str | None]:
    """The artifact, held against the key that was wanted and published here; or None, and what is wrong with MLflow's
    (None: it holds none).

    Args:
        experiment: in which the stage's run is.

    Raises:
        TrackerError: MLflow does not answer, or refuses.
    """
    from tasks.tracking import api as tracking

    folder, final = (
        runs_folder() / ".fetched" / artifacts.name_of(stage, key),
        artifacts.folder(runs_folder(), stage, key),
    )
    shutil.rmtree(folder, ignore_errors=True)
    try:
        remote = patience.run(lambda: tracking.find_remote(stage, key, experiment))
        if remote is None:
            return None, None
        arrived = folder.with_name(folder.name + ".download")
        if not patience.run(lambda: tracking.fetch(*remote, folder), growing=lambda: tracking.size_of(arrived)):
            return None, None
        mismatch = artifacts.foreign(folder, stage, key)
        if mismatch is not None:
            return None, mismatch
        publish(folder, final)
        outbox.remember(final, remote[0])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return artifacts.find(runs_folder(), stage, key)
