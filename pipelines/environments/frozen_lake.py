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
        self.fog: int | None = None
        self.steps_from: dict[tuple[int, int], int] = {}
        self.start_steps = self.nearest = 0
        self.env: Any = None
        self.done = False

    def reset(self, problem: Problem) -> list[Message]:
        """Start on the problem's map and take the actions in `walked` of its info."""
        self._open(list(problem.info["map"]), problem.info.get("fog"), bool(problem.info.get("subgoals")))
        messages: list[Message] = [{"role": "user", "content": self._picture()}]
        for action in problem.info.get("walked", []):
            messages.append({"role": "assistant", "content": action})
            messages.append({"role": "user", "content": self.step(action).observation})
        return messages

    def _open(self, rows: list[str], fog: int | None = None, subgoals: bool = False) -> None:
        import gymnasium

        self.rows, self.done, self.fog = rows, False, fog
        self.steps_from = steps_to_goal(rows) if subgoals else {}
        self.env = gymnasium.make("FrozenLake-v1", desc=rows, is_slippery=False, disable_env_checker=True).unwrapped
        self.env.reset(seed=0)
        self.start_steps = self.nearest = self.steps_from.get(self._place, 0)

    @property
    def _place(self) -> tuple[int, int]:
        return divmod(int(self.env.s), len(self.rows[0]))

    def _picture(self) -> str:
        return picture(self.rows, self._place, self.fog)

    def state_key(self) -> str:
        """The map and the agent's position; in fog, what the agent sees."""
        return self._picture() if self.fog is not None else f"{'/'.join(self.rows)}@{self.env.s}"

    def step(self, message: str) -> Step:
        """One move; a message that is no action costs a turn and moves nothing."""
        action = message.strip().lower()
        if action not in ACTIONS or self.done:
            return Step(self._picture(), 0.0, self.done, self.state_key(), {"success": False, "invalid": True})
        _, reward, self.done, _, _ = self.env.step(ACTIONS.index(action))
        info = {"success": reward > 0}
        if not self.steps_from:
            return Step(self._picture(), float(reward), bool(self.done), self.state_key(), info)
        left = self.steps_from.get(self._place, self.nearest)
        progress = max(0, self.nearest - left) / self.start_steps
        self.nearest = min(self.nearest, left)
        return Step(
            self._picture(), progress, bool(self.done), self.state_key(), info, components={"subgoals": progress}
        )

    def state_dict(self) -> dict[str, Any]:
        """Map, position, whether the episode is over, and how near the goal it came."""
        about = {"fog": self.fog, "subgoals": bool(self.steps_from), "nearest": self.nearest, "start": self.start_steps}
        return {"map": self.rows, "place": int(self.env.s), "done": bool(self.done), **about}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._open(list(state["map"]), state["fog"], state["subgoals"])
        self.env.s, self.done, self.nearest, self.start_steps = (
            state[k] for k in ("place", "done", "nearest", "start")
        )


def picture(rows: list[str], place: tuple[int, int], fog: int | None = None) -> str:
    """The map as the policy sees it; cells more than `fog` rows or columns away are `?`.

    >>> print(picture(["SF", "HG"], (0, 1)))
    .A
    OG
    >>> print(picture(["SFF", "FFF", "FFG"], (0, 0), fog=1))
    A.?
    ..?
    ???
    """
    shown = [["O" if c == "H" else "G" if c == "G" else "." for c in row] for row in rows]
    shown[place[0]][place[1]] = "A"
    for r, row in enumerate(shown if fog is not None else []):
        for c in range(len(row)):
            if max(abs(r - place[0]), abs(c - place[1])) > (fog or 0):
                row[c] = "?"
    return "\n".join("".join(row) for row in shown)


def steps_to_goal(rows: list[str]) -> dict[tuple[int, int], int]:
    """Moves from each cell of ice, by a shortest way, to the goal; cells without a way are left out.

    >>> steps_to_goal(["SF", "HG"])
    {(1, 1): 0, (0, 1): 1, (0, 0): 2}
    """
    goal = next((r, c) for r, row in enumerate(rows) for c, kind in enumerate(row) if kind == "G")
    steps = {goal: 0}
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for row_step, column_step in MOVES.values():
            neighbour = (cell[0] + row_step, cell[1] + column_step)
            inside = 0 <= neighbour[0] < len(rows) and 0 <= neighbour[1] < len(rows[0])
            if inside and neighbour not in steps and rows[neighbour[0]][neighbour[1]] != "H":
                steps[neighbour] = steps[cell] + 1
                queue.append(neighbour)
    return dict(sorted(steps.items(), key=lambda item: (item[1], [-x for x in item[0]])))


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
    size: int,
    seed: int,
    *,
    side: int = 4,
    ice: float = 0.7,
    shortest: int = 2,
    demonstrations: bool = False,
    fog: int | None = None,
    subgoals: bool = False,
) -> Iterator[dict[str, Any]]:
    """Random maps with start and goal anywhere and a path between them; the expert's next move is the solution.

    Args:
        size: rows.
        seed: of the maps.
        side: rows and columns of the map.
        ice: chance that a cell is ice.
        shortest: least number of moves.
        demonstrations: one row per move of the expert, with the moves before it as the conversation, for SFT.
        fog: how many rows and columns the agent sees around itself; None: all.
        subgoals: pay each cell that is nearer to the goal than any before, 1 in all for an arrival (the dense rewards of A
            Practitioner's Guide to Multi-turn Agentic RL, arXiv 2510.01132), instead of the arrival alone.
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
            info: dict[str, Any] = {
                "environment": "frozen_lake",
                "map": rows,
                "walked": path[:turn],
                "solution": path[turn],
            }
            info |= ({"fog": fog} if fog is not None else {}) | ({"subgoals": True} if subgoals else {})
            problem = Problem(
                uid="", prompt=[], answer=path[turn], verifier="exact", source="frozen_lake", licence="MIT", info=info
            )
            yield {"prompt": World().reset(problem), "answer": path[turn], "verifier": "exact", "info": info}
            yielded += 1
