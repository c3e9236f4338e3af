"""The problems of an environment that is a benchmark."""

from __future__ import annotations

from pipelines import environments
from pipelines.curate.mapping import problem_uid
from pipelines.data.records import Problem
from pipelines.recipe.settings import PlayedTask


def problems(task: PlayedTask, limit: int | None) -> list[Problem]:
    """The task's problems; they depend on its settings only."""
    records = []
    for row in environments.problems(task.task, limit or task.size, task.seed, task.config):
        about = {k: row[k] for k in ("prompt", "answer", "verifier", "info")}
        uid = problem_uid(task.task, row["prompt"])
        records.append(Problem(uid=uid, source=task.task, licence="generated", **about))
    return records
