"""Pipeline runs that are open in MLflow: signs of life, those that give none any more, and the recipe of a run.

Every function raises `TrackerUnavailable` or `TrackerRejected`, nothing else of MLflow's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mlflow.entities import ViewType

from tasks.tracking.client import client, mlflow_errors

HEARTBEAT = "whetstone.heartbeat"
"""Tag of a pipeline's run: when its process was last alive, in seconds since 1970."""


@mlflow_errors()
def beat(run_id: str, still_open: Callable[[], bool]) -> None:
    """Say that the run's process is alive.

    Args:
        still_open: whether the process has not begun to close the run; then one that was closed as abandoned is reopened.
    """
    to = client()
    to.set_tag(run_id, HEARTBEAT, str(int(time.time())))
    if to.get_run(run_id).info.status == "KILLED" and still_open():
        to.update_run(run_id, status="RUNNING")


@mlflow_errors()
def unresponsive(limit_s: float) -> dict[str, tuple[str, float]]:
    """Pipeline runs that are open and have given no sign of life for `limit_s` seconds: id → (owner, seconds)."""
    to = client()
    ids = [e.experiment_id for e in to.search_experiments(view_type=ViewType.ACTIVE_ONLY)]
    question = "attributes.status = 'RUNNING' and tags.`whetstone.kind` = 'pipeline'"
    late, token, now = {}, None, time.time()
    while ids:
        page = to.search_runs(ids, question, max_results=1000, page_token=token)
        for run in page:
            last = run.data.tags.get(HEARTBEAT, "")
            if last.isdigit() and now - int(last) > limit_s:
                late[run.info.run_id] = (run.data.tags.get("whetstone.owner", "?"), now - int(last))
        token = page.token
        if not token:
            break
    return late


@mlflow_errors()
def recipe_text(run_id: str) -> str:
    """The recipe that a pipeline's run was started with, every field filled in."""
    return Path(client().download_artifacts(run_id, "recipe.yaml")).read_text(encoding="utf-8")
