"""Questions to a judge about two drawn states of FrozenLake: which is closer to the goal? The first, the second, or neither.

A state is a map with the agent in it; a state in a hole is further than any other. The answers are those that a judge of `comparisons:
{states: true}` gives, so that a small model can learn to be one here, where the verdict is known.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, validate_call

from pipelines.contract import template as templates
from pipelines.environments import _drawn, frozen_lake
from pipelines.environments._answered import Part, World, belongs

__all__ = ["World", "problems"]

VERIFIERS = ("exact",)
SHOWS_IMAGES = True
LIBRARIES = ("gymnasium",)
QUESTION = "{first}{second}Closer?"
ANSWERS = {True: "Better: first", False: "Better: second", None: "Better: unsure"}


@validate_call
def problems(
    size: int,
    seed: int,
    *,
    side: Annotated[int, Field(ge=2, le=8)] = 4,
    ice: Annotated[float, Field(ge=0, le=1)] = 0.85,
    shows: _drawn.Shows = "image",
    cell: _drawn.Cell = _drawn.CELL,
    template: Annotated[str, Field(max_length=8000)] = QUESTION,
    part: Part = "train",
    demonstrations: bool = False,
) -> Iterator[dict[str, Any]]:
    """Two states of one map, and which has fewer steps to the goal; as many with the one as with the other, a few with neither.

    Args:
        size: rows.
        seed: of maps and states.
        side: rows and columns of a map.
        ice: chance that a cell is ice.
        shows: maps as images, as text, or both.
        cell: width and height of a cell of the image in pixels.
        template: the question, with `{first}` and `{second}` in place of the states.
        part: `train` or `test`; a map is of one of them.
        demonstrations: with the answer as the solution, for SFT.
    """
    draw = random.Random(f"closer states {seed}")
    view = _drawn.View(shows, cell)
    yielded = 0
    for row in frozen_lake.problems(1_000_000_000, seed, side=side, ice=ice):
        rows = row["info"]["map"]
        if not belongs("/".join(each.replace("S", "F") for each in rows), part):
            continue
        steps = frozen_lake.steps_to_goal(rows)
        places = draw.sample(
            [(r, c) for r in range(side) for c in range(side) if (r, c) in steps or rows[r][c] == "H"], 2
        )
        far = [steps.get(place, side * side) for place in places]
        answer = ANSWERS[None if far[0] == far[1] else far[0] < far[1]]
        first, second = (view.of_board(frozen_lake.picture(rows, place), frozen_lake.TILES) for place in places)
        text = templates.fill(template, {"first": first, "second": second})
        info: dict[str, Any] = {"environment": "closer_states"} | ({"solution": answer} if demonstrations else {})
        yield {"prompt": [{"role": "user", "content": text}], "answer": answer, "verifier": "exact", "info": info}
        yielded += 1
        if yielded == size:
            return
