"""The rows that environments make for curation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pipelines.base.errors import RecipeError
from pipelines.data.records import Problem
from pipelines.environments import Environment

Drawn = TypeVar("Drawn")


def accepted(draw: Callable[[], Drawn | None], most: int, problem: str, fix: str) -> Iterator[Drawn]:
    """What is drawn, without end; None is a draw that is refused.

    Args:
        most: draws that may be refused in a row.
        problem, fix: of the error after that.

    Raises:
        RecipeError: so many were refused in a row.

    >>> draws = iter([1, None, 2, None, None])
    >>> rows = accepted(lambda: next(draws), 2, "none of 2 numbers is there", "Draw others.")
    >>> next(rows), next(rows)
    (1, 2)
    """
    refused = 0
    while refused < most:
        drawn = draw()
        refused += 1
        if drawn is not None:
            refused = 0
            yield drawn
    raise RecipeError(problem, fix=fix)


def starting_row(world: Environment, answer: str, info: dict[str, Any]) -> dict[str, Any]:
    """What `problems` yields of an episode: the conversation it begins with, the answer, and its info.

    Args:
        world: a new one, whose episode depends on the info alone.
        answer: what an expert says first, or a word for what is to be reached.
    """
    problem = Problem(uid="", prompt=[], answer=answer, verifier="exact", source="", licence="", info=info)
    return {"prompt": world.reset(problem), "answer": answer, "verifier": "exact", "info": info}
