"""Episodes of an environment, begun from the rows that it makes, and their copies."""

from __future__ import annotations

import json
from typing import Any

from pipelines import environments
from pipelines.data.records import Problem


def problem(row: dict[str, Any]) -> Problem:
    return Problem(uid="u", source="s", licence="l", **{k: row[k] for k in ("prompt", "answer", "verifier", "info")})


def started(name: str, row: dict[str, Any]) -> Any:
    """An episode of the row, which begins with the row's prompt."""
    world = environments.make(name)
    assert world.reset(problem(row)) == row["prompt"]
    return world


def copy_of(name: str, world: Any) -> Any:
    """Another one in the same state, as JSON carries it."""
    copy = environments.make(name)
    copy.load_state_dict(json.loads(json.dumps(world.state_dict())))
    assert copy.state_key() == world.state_key()
    return copy
