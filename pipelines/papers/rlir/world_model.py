"""A world model in text: a board and actions in, the board after each action out.

    A..O                ..AO
    .O..       ->       .O..        A you, O a hole, . ice, G the goal; between boards an empty line
    ...G                ...G
    right right

The answer above leaves the first of its two boards out. After RLIR (arXiv 2509.23958), whose world model draws the frames of a video from
actions: the verifier `inverse_dynamics` recovers the actions from the boards.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, validate_call

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.environments._answered import Part, World, belongs
from pipelines.papers.rlir.boards import WORLDS, recovered

__all__ = ["World", "problems"]

JUDGES = {"actions": "inverse_dynamics", "boards": "exact"}
"""What answers are judged by → the verifier."""
MAX_REFUSED = 1_000
"""Boards in a row on which no actions were drawn before `problems` raises."""
ALL = 1_000_000_000
"""Boards asked for: as many as are taken."""

Path = tuple[list[str], list[str]]
"""Actions, and the board after each."""
VERIFIERS = ("inverse_dynamics", "exact")


def walk(world: str, board: str, steps: int, draw: random.Random) -> Path | None:
    """Random actions that their boards tell apart, the last of which alone may end the episode; None where the draw leads to none.

    In a corner of FrozenLake, two actions leave the player where it is; neither is drawn.
    """
    dynamics = WORLDS[world]
    actions: list[str] = []
    boards: list[str] = []
    for step in range(steps):
        clear = [a for a in dynamics.actions(board) if recovered(world, board, dynamics.after(board, a)) == a]
        if not clear:
            return None
        actions.append(draw.choice(clear))
        boards.append(dynamics.after(board, actions[-1]))
        if dynamics.over(board, boards[-1]) and step < steps - 1:
            return None
        board = boards[-1]
    return actions, boards


@validate_call
def problems(
    size: int,
    seed: int,
    *,
    world: Literal["frozen_lake", "sokoban", "tic_tac_toe"] = "frozen_lake",
    steps: Annotated[int, Field(strict=True, ge=1, le=100)] = 1,
    judged: Literal["actions", "boards"] = "actions",
    part: Part = "train",
    demonstrations: bool = False,
    errors: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.0,
    config: dict[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Boards of an environment's own problems, with actions that each can be told from its board.

    Args:
        size: rows at most; tic-tac-toe has few boards.
        seed: of the boards and actions.
        world: whose boards.
        steps: actions of a problem.
        judged: by the actions that the written boards give away (RLIR's reward), or by whether all boards are right.
        part: `train` or `test`, by a hash of the question.
        demonstrations: with boards as the solution, for SFT.
        errors: share of the demonstrations in which other actions were taken than those that were asked for.
        config: of the environment, such as `side` of FrozenLake; `opening` of tic-tac-toe, the moves made before at most.

    Raises:
        RecipeError: hardly any board allows so many actions, or `config` asks for pictures.
    """
    if (config or {}).get("shows", "text") != "text":
        raise RecipeError("config.shows", "boards are written here, and not drawn", "Leave `shows` out.")
    draw = random.Random(f"world model {seed}")
    choices = random.Random(f"world model {seed} choices")
    yielded = refused = 0
    for row in environments.problems(world, ALL, seed, config or {}):
        if yielded == size:
            return
        if refused == MAX_REFUSED:
            raise RecipeError(
                f"environment world_model: on none of {MAX_REFUSED:,} boards of {world} {steps} actions could be drawn",
                fix="Lower `steps`, or let `config` make larger boards.",
            )
        refused += 1
        board = row["prompt"][-1]["content"]
        board = board.partition("\n")[2] if world == "tic_tac_toe" else board
        path = walk(world, board, steps, draw)
        question = "" if path is None else f"{board}\n{' '.join(path[0])}"
        if path is None or not belongs(question, part):
            continue
        info: dict[str, Any] = {"environment": "world_model", "world": world, "board": board, "actions": path[0]}
        if demonstrations:
            other = walk(world, board, steps, choices) if choices.random() < errors else None
            info["solution"] = "\n\n".join((other or path)[1])
        yield {
            "prompt": [{"role": "user", "content": question}],
            "answer": "\n\n".join(path[1]),
            "verifier": JUDGES[judged],
            "info": info,
        }
        yielded += 1
        refused = 0
