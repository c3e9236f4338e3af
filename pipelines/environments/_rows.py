"""The rows that environments make for curation."""

from __future__ import annotations

from typing import Any

from pipelines.data.records import Problem
from pipelines.environments import Environment


def starting_row(world: Environment, answer: str, info: dict[str, Any]) -> dict[str, Any]:
    """What `problems` yields of an episode: the conversation it begins with, the answer, and its info.

    Args:
        world: a new one, whose episode depends on the info alone.
        answer: what an expert says first, or a word for what is to be reached.
    """
    problem = Problem(uid="", prompt=[], answer=answer, verifier="exact", source="", licence="", info=info)
    return {"prompt": world.reset(problem), "answer": answer, "verifier": "exact", "info": info}
