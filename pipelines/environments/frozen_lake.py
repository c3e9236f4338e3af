"""FrozenLake-v1 of gymnasium as text: cross the ice to the goal, one word a turn.

A..O        A you, O a hole, . ice, G the goal
.O..        answer with left, down, right or up
...G
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

from pipelines.data.records import Message, Problem
from pipelines.environments import Step
from pipelines.errors import RecipeError

MAX_REFUSED = 100_000
"""Rejected maps in a row (no path to the goal, or too short) before `problems` raises."""
ACTIONS = ("left", "down", "right", "up")
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}


class World:
    """An episode on the map in the problem's info (`map`, rows of S, F, H, G as gymnasium writes them)."""

    waits = False

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.env: Any = None
        self.done = False

    def reset(self, problem: Problem) -> list[Message]:
        """Start on the problem's map and take the actions in `walked` of its info."""
        self._open(list(problem.info["map"]))
        messages: list[Message] = [{"role": "user", "content": self._picture()}]
        for action in problem.info.get("walked", []):
            messages.append({"role": "assistant", "content": action})
            messages.append({"role": "user", "content": self.step(action).observation})
        return messages

    def _open(self, rows: list[str]) -> None:
        import gymnasium

        self.rows, self.done = rows, False
        self.env = gymnasium.make("FrozenLake-v1", desc=rows, is_slippery=False, disable_env_checker=True).unwrapped
        self.env.reset(seed=0)

    @property
    def _place(self) -> tuple[int, int]:
        return divmod(int(self.env.s), len(self.rows[0]))

    def _picture(self) -> str:
        return picture(self.rows, self._place)

    def state_key(self) -> str:
        """The map and the agent's position."""
        return f"{'/'.join(self.rows)}@{self.env.s}"

    def step(self, message: str) -> Step:
        """One move; a message that is no action costs a turn and moves nothing."""
        action = message.strip().lower()
        if action not in ACTIONS or self.done:
            return Step(self._picture(), 0.0, self.done, self.state_key(), {"success": False, "invalid": True})
        _, reward, self.done, _, _ = self.env.step(ACTIONS.index(action))
        return Step(self._picture(), float(reward), bool(self.done), self.state_key(), {"success": reward > 0})

    def state_dict(self) -> dict[str, Any]:
        """Map, position and whether the episode is over."""
        return {"map": self.rows, "place": int(self.env.s), "done": bool(self.done)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._open(list(state["map"]))
        self.env.s, self.done = state["place"], state["done"]


def picture(rows: list[str], place: tuple[int, int]) -> str:
    """The map as the policy sees it.

    >>> print(picture(["SF", "HG"], (0, 1)))
    .A
    OG
    """
    shown = [["O" if c == "H" else "G" if c == "G" else "." for c in row] for row in rows]
    shown[place[0]][place[1]] = "A"
    return "\n".join("".join(row) for row in shown)


def expert(rows: list[str]) -> list[str]:
    """A shortest path from S to G as actions; empty where there is none.

    >>> expert(["SF", "HG"])
    ['right', 'down']
    """
    start = next((r, c) for r, row in enumerate(rows) for c, kind in enumerate(row) if kind == "S")
    path_to: dict[tuple[int, int], list[str]] = {start: []}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        if rows[cell[0]][cell[1]] == "G":
            return path_to[cell]
        for action, (row_step, column_step) in MOVES.items():
            neighbour = (cell[0] + row_step, cell[1] + column_step)
            inside = 0 <= neighbour[0] < len(rows) and 0 <= neighbour[1] < len(rows[0])
            if inside and neighbour not in path_to and rows[neighbour[0]][neighbour[1]] != "H":
                path_to[neighbour] = [*path_to[cell], action]
                queue.append(neighbour)
    return []


def problems(
    size: int, seed: int, *, side: int = 4, ice: float = 0.7, shortest: int = 2, demonstrations: bool = False
) -> Iterator[dict[str, Any]]:
    """Random maps with start and goal anywhere and a path between them; the expert's next move is the solution.

    Args:
        size: rows.
        seed: of the maps.
        side: rows and columns of the map.
        ice: chance that a cell is ice.
        shortest: least number of moves.
        demonstrations: one row per move of the expert, with the moves before it as the conversation, for SFT.
    """
    draw = random.Random(f"frozen lake {seed}")
    yielded = refused = 0
    while yielded < size:
        if refused == MAX_REFUSED:
            raise RecipeError(
                f"environment frozen_lake: none of {MAX_REFUSED:,} maps of side {side} with ice {ice} has a way of "
                f"{shortest} moves. Raise `side` or `ice`, or lower `shortest`."
            )
        refused += 1
        cells = [["F" if draw.random() < ice else "H" for _ in range(side)] for _ in range(side)]
        (a, b), (c, d) = ((draw.randrange(side), draw.randrange(side)) for _ in range(2))
        if (a, b) == (c, d):
            continue
        cells[a][b], cells[c][d] = "S", "G"
        rows = ["".join(row) for row in cells]
        path = expert(rows)
        if len(path) < shortest:
            continue
        refused = 0
        for turn in range(len(path) if demonstrations else 1):
            if yielded >= size:
                return
            info = {"environment": "frozen_lake", "map": rows, "walked": path[:turn], "solution": path[turn]}
            problem = Problem(
                uid="", prompt=[], answer=path[turn], verifier="exact", source="frozen_lake", licence="MIT", info=info
            )
            yield {"prompt": World().reset(problem), "answer": path[turn], "verifier": "exact", "info": info}
            yielded += 1
