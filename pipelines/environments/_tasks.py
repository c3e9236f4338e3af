"""Tasks for agent programs: from a file, or the questions of another environment."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines import environments, verifiers
from pipelines.base.errors import Problem as Told
from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.data import marks

NOT_THE_TASK_S = ("environment", "tools", "toolbox", "solution", "reference_calls", "costs")
"""Fields of the info of another environment's rows that are about how it plays them."""


@dataclass(frozen=True)
class Task:
    """What a program is told, and what its result is compared with."""

    text: str
    answer: str = "win"
    verifier: str = "exact"
    info: dict[str, Any] = field(default_factory=dict)


def refusals(source: Any) -> Iterator[Told]:
    """What is wrong with the field `tasks` before any is read."""
    if isinstance(source, str):
        if not Path(source).expanduser().is_file():
            yield Told("tasks", f"there is no file {source}", "Correct the path.")
        return
    name = source.get("environment") if isinstance(source, Mapping) else None
    if not isinstance(name, str) or name == "agent":
        yield Told(
            "tasks",
            "is neither a file nor names an environment",
            "Write my_tasks.jsonl, or {environment: worked_sums}.",
        )
    elif name not in environments.known():
        yield Told("tasks.environment", f"no environment called {name!r}", did_you_mean(name, environments.known()))


def tasks_of(source: str | Mapping[str, Any], size: int, seed: int) -> Iterator[Task]:
    """So many tasks, or all that there are, in an order of the seed's.

    Args:
        source: a file with `{"task", "answer", "verifier", "info"}` a line, of which only `task` must be there; or `environment`
            and settings of one, whose questions become tasks.

    Raises:
        RecipeError: a line of the file is none.
    """
    if isinstance(source, str):
        yield from _of_file(source, size, seed)
        return
    config = {name: value for name, value in source.items() if name != "environment"}
    for row in map(marks.unnamed_in, environments.problems(str(source["environment"]), size, seed, config)):
        info = {field: value for field, value in row["info"].items() if field not in NOT_THE_TASK_S}
        yield Task(row["prompt"][-1]["content"], row["answer"], row["verifier"], info)


def _of_file(name: str, size: int, seed: int) -> Iterator[Task]:
    lines = [
        (number, line)
        for number, line in enumerate(Path(name).expanduser().read_text().splitlines(), 1)
        if line.strip()
    ]
    random.Random(seed).shuffle(lines)
    for number, line in lines[:size]:
        try:
            row = marks.unnamed_in(json.loads(line))
            task = Task(**{{"task": "text"}.get(field, field): value for field, value in row.items()})
        except (ValueError, TypeError, AttributeError):
            task = None
        if task is None or not all(isinstance(each, str) for each in (task.text, task.answer, task.verifier)):
            raise RecipeError(
                f"environment agent: line {number} of {name} is no task",
                fix='Write {"task": TEXT, "answer": TEXT, "verifier": NAME, "info": {}}; all but `task` may be left out.',
            )
        if task.verifier not in verifiers.known():
            raise RecipeError(
                f"environment agent: line {number} of {name} names an unknown verifier {task.verifier!r}."
            )
        yield task
