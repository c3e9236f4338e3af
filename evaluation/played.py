"""The problems of an environment that is a benchmark."""

from __future__ import annotations

from typing import Any

from pipelines import environments
from pipelines.curate.mapping import problem_uid
from pipelines.data.records import Problem
from pipelines.recipe.settings import PlayedTask


def problems(task: PlayedTask, limit: int | None) -> list[Problem]:
    """The task's problems; they depend on its settings only."""
    return drawn(task.task, limit or task.size, task.seed, task.config)


def drawn(name: str, size: int, seed: int, config: dict[str, Any]) -> list[Problem]:
    """Problems of an environment, as `environments.problems` draws them."""
    records = []
    for row in environments.problems(name, size, seed, config):
        about = {k: row[k] for k in ("prompt", "answer", "verifier", "info")}
        uid = problem_uid(name, row["prompt"], row["info"])
        records.append(Problem(uid=uid, source=name, licence="generated", **about))
    return records
