"""FrozenLake-v1 of gymnasium as text: cross the ice to the goal, one word a turn.

A..O        A you, O a hole, . ice, G the goal; X you in a hole, at the end
.O..        answer with left, down, right or up
...G

With `shows: image` the map is a picture: ice is light blue, a hole a dark disc, the goal a green square, and you a red diamond.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pipelines.data.records import Message, Problem
from pipelines.environments import Step, _beliefs, _drawn
from pipelines.environments._rows import accepted, starting_row

MAX_REFUSED = 100_000
"""Rejected maps in a row (no path to the goal, or too short) before `problems` raises."""
ACTIONS = ("left", "down", "right", "up")
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
_ICE = (214, 234, 248)
TILES = {
    ".": _drawn.Tile(_ICE),
    "O": _drawn.Tile(_ICE, "disc", (27, 58, 107)),
    "G": _drawn.Tile(_ICE, "square", (40, 160, 60)),
    "A": _drawn.Tile(_ICE, "diamond", (220, 40, 40)),
    "X": _drawn.Tile(_ICE, "cross", (220, 40, 40)),
    "?": _drawn.Tile((150, 150, 150)),
}

LIBRARIES = ("gymnasium",)
PLAYED = True
SHOWS_IMAGES = True


class World:
    """An episode on the map in the problem's info (`map`, rows of S, F, H, G as gymnasium writes them)."""

    waits = False

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.fog: int | None = None
        self.steps_from: dict[tuple[int, int], int] = {}
        self.start_steps = self.nearest = 0
        self.belief_reward: float | None = None
        self.known_cells: set[str] = set()
        self.visited: set[str] = set()
        self.env: Any = None
        self.done = False
        self.view = _drawn.View()

    def reset(self, problem: Problem) -> list[Message]:
        """Start on the problem's map and take the actions in `walked` of its info."""
        about = problem.info
        self.view = _drawn.View.of(about)
        self._open(list(about["map"]), about.get("fog"), bool(about.get("subgoals")), about.get("beliefs"))
        messages: list[Message] = [{"role": "user", "content": self._shown()}]
        for action in problem.info.get("walked", []):
            messages.append({"role": "assistant", "content": action})
            messages.append({"role": "user", "content": self.step(action).observation})
        return messages

    def _open(
        self, rows: list[str], fog: int | None = None, subgoals: bool = False, beliefs: float | None = None
    ) -> None:
        import gymnasium

        self.rows, self.done, self.fog = rows, False, fog
        self.steps_from = steps_to_goal(rows) if subgoals else {}
        self.env = gymnasium.make("FrozenLake-v1", desc=rows, is_slippery=False, disable_env_checker=True).unwrapped
        self.env.reset(seed=0)
        self.start_steps = self.nearest = self.steps_from.get(self._place, 0)
        self.belief_reward, self.known_cells, self.visited = beliefs, set(), set()
        self._look()

    def _look(self) -> None:
        """Remember what the agent sees, and where it is."""
        shown = self._picture().split("\n")
        self.known_cells |= {f"{r},{c}" for r, row in enumerate(shown) for c, cell in enumerate(row) if cell != "?"}
        self.visited.add("{},{}".format(*self._place))

    @property
    def _place(self) -> tuple[int, int]:
        return divmod(int(self.env.s), len(self.rows[0]))

    def _picture(self) -> str:
        return picture(self.rows, self._place, self.fog)

    def _shown(self) -> str:
        return self.view.of_board(self._picture(), TILES)

    def state_key(self) -> str:
        """The map and the agent's position; in fog, what the agent sees."""
        return self._picture() if self.fog is not None else f"{'/'.join(self.rows)}@{self.env.s}"

    def known(self) -> dict[str, Any]:
        """What the agent can know from all it has seen: the belief that is paid in full, but for `next`, which tells the future."""
        cells = {f"{r},{c}": kind for r, row in enumerate(self.rows) for c, kind in enumerate(row)}
        goal = next((cell for cell in sorted(self.known_cells) if cells[cell] == "G"), None)
        return {
            "goal": goal,
            "holes": sorted(cell for cell in self.known_cells if cells[cell] == "H"),
            "visited": sorted(self.visited),
            "unseen": len(cells) - len(self.known_cells),
            "phase": "search" if goal is None else "reach",
        }

    def step(self, message: str) -> Step:
        """One move; a message that is no action costs a turn and moves nothing. A belief stands in front of the action."""
        if self.belief_reward is None:
            return self._move(message)
        belief, action = _beliefs.parse(message)
        known, over = self.known(), self.done
        step = self._move(action)
        earned = 0.0 if over else self.belief_reward * believed(belief, known, self._picture())
        parts = (step.components or {"arrival": step.reward}) | {_beliefs.COMPONENT: earned}
        return replace(step, reward=step.reward + earned, components=parts, key=belief_key(belief))

    def _move(self, message: str) -> Step:
        action = message.strip().lower()
        if action not in ACTIONS or self.done:
            return Step(self._shown(), 0.0, self.done, self.state_key(), {"success": False, "invalid": True})
        _, reward, self.done, _, _ = self.env.step(ACTIONS.index(action))
        self._look()
        info = {"success": reward > 0}
        if not self.steps_from:
            return Step(self._shown(), float(reward), bool(self.done), self.state_key(), info)
        left = self.steps_from.get(self._place, self.nearest)
        progress = max(0, self.nearest - left) / self.start_steps
        self.nearest = min(self.nearest, left)
        return Step(self._shown(), progress, bool(self.done), self.state_key(), info, components={"subgoals": progress})

    def state_dict(self) -> dict[str, Any]:
        """Map, position, whether the episode is over, how near the goal it came, and what the agent has seen."""
        about = {"fog": self.fog, "subgoals": bool(self.steps_from), "nearest": self.nearest, "start": self.start_steps}
        memory = {"beliefs": self.belief_reward, "seen": sorted(self.known_cells), "visited": sorted(self.visited)}
        shown = self.view._asdict()
        return {"map": self.rows, "place": int(self.env.s), "done": bool(self.done), **about, **memory, **shown}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self.view = _drawn.View.of(state)
        self._open(list(state["map"]), state["fog"], state["subgoals"], state["beliefs"])
        self.known_cells, self.visited = set(state["seen"]), set(state["visited"])
        self.env.s, self.done, self.nearest, self.start_steps = (
            state[k] for k in ("place", "done", "nearest", "start")
        )


def believed(belief: dict[str, Any] | None, known: dict[str, Any], observation: str) -> float:
    """How consistent a belief is with what the agent can know and with the observation that follows, from 0 to 1.

    A belief: `goal` (cell or null), `holes`, `visited` (lists of cells), `unseen` (number of cells), `phase` (search until the goal has
    been seen, then reach) and `next`, the picture that the move will show. Cells are "row,column", counted from 0.
    """
    if belief is None:
        return 0.0
    unseen = belief.get("unseen")
    claimed = unseen if isinstance(unseen, int) and not isinstance(unseen, bool) else -1
    state = _beliefs.state_score(
        float("goal" in belief and belief["goal"] == known["goal"]),
        _beliefs.f1(belief.get("holes"), known["holes"]),
        _beliefs.f1(belief.get("visited"), known["visited"]),
        max(0.0, 1 - abs(claimed - known["unseen"]) / max(1, known["unseen"])) if claimed >= 0 else 0.0,
    )
    phase = float(belief.get("phase") == known["phase"])
    return _beliefs.consistency(state, phase, _beliefs.overlap(belief.get("next"), observation), 1.0)


def belief_key(belief: dict[str, Any] | None) -> str:
    """What beliefs are compared by, as coarse as ReBel's: the phase and where the goal is thought to be.

    >>> belief_key({"phase": "reach", "goal": "2,1", "holes": []}), belief_key(None)
    ('["reach", "2,1"]', 'none')
    """
    return _beliefs.NO_BELIEF if belief is None else json.dumps([belief.get("phase"), belief.get("goal")])


def with_belief(world: World, action: str) -> str:
    """The expert's message: all that it can know and what it will see next, then the action."""
    after = World()
    after.load_state_dict(world.state_dict())
    after.step(action)
    belief = {**world.known(), "next": " ".join(after._picture().split())}
    return f"<belief>{json.dumps(belief, separators=(',', ':'))}</belief>{action}"


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
    shown[place[0]][place[1]] = "X" if rows[place[0]][place[1]] == "H" else "A"
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


def expert_turns(rows: list[str], fog: int | None, beliefs: float | None) -> list[str]:
    """The expert's messages from S to G: its actions, with its beliefs where they are asked for."""
    path = expert(rows)
    if beliefs is None:
        return path
    world, messages = World(), []
    world._open(rows, fog, beliefs=beliefs)
    for action in path:
        messages.append(with_belief(world, action))
        world.step(action)
    return messages


def relabel(problem: Problem, messages: Sequence[str]) -> tuple[Problem, list[int]] | None:
    """The same map with the goal where the episode ended, and the moves of it that get there.

    An episode that fell into a hole ended where it stood before. Messages that moved nothing are left out, and so are those after the
    first arrival. None where it never left its first place, where the moves shown in the prompt cross the new goal, and for
    episodes with beliefs, which spoke of the old one.
    """
    world = World()
    world.reset(problem)
    places, moved = [world._place], []
    for place, message in enumerate(messages):
        before = world._place
        done = world.step(message).done
        if done and world.rows[world._place[0]][world._place[1]] != "G":
            break
        if world._place != before:
            places.append(world._place)
            moved.append(place)
    end = places[-1]
    first = places.index(end)
    if not first or world.belief_reward is not None or world.rows[end[0]][end[1]] in "GS":
        return None
    rows = [list(row.replace("G", "F")) for row in world.rows]
    rows[end[0]][end[1]] = "G"
    info = {**problem.info, "map": ["".join(row) for row in rows], "expert_turns": first}
    other = World()
    prompt = other.reset(replace(problem, info=info))
    return None if other.done else (replace(problem, prompt=prompt, info=info), moved[:first])


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
    beliefs: float | None = None,
    shows: _drawn.Shows = "text",
    cell: int = _drawn.CELL,
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
        beliefs: a turn states what it believes in a block in front of its action; what a belief is paid that is right in full
            (ReBel, arXiv 2605.20061). Turns are then compared by their beliefs.
        shows: the map as an image, as text, or both; beliefs speak of the text.
        cell: width and height of a cell of the image in pixels.
    """
    pictured = _drawn.about(shows, cell)
    draw = random.Random(f"frozen lake {seed}")

    def crossable() -> list[str] | None:
        cells = [["F" if draw.random() < ice else "H" for _ in range(side)] for _ in range(side)]
        (a, b), (c, d) = ((draw.randrange(side), draw.randrange(side)) for _ in range(2))
        if (a, b) == (c, d):
            return None
        cells[a][b], cells[c][d] = "S", "G"
        rows = ["".join(row) for row in cells]
        return rows if len(expert(rows)) >= shortest else None

    problem = f"environment frozen_lake: none of {MAX_REFUSED:,} maps of side {side} with ice {ice} has a way of {shortest} moves"
    maps = accepted(crossable, MAX_REFUSED, problem, "Raise `side` or `ice`, or lower `shortest`.")
    yielded = 0
    while yielded < size:
        rows = next(maps)
        path = expert_turns(rows, fog, beliefs)
        for turn in range(len(path) if demonstrations else 1):
            if yielded >= size:
                return
            info: dict[str, Any] = {
                "environment": "frozen_lake",
                "map": rows,
                "walked": path[:turn],
                "solution": path[turn],
                "expert_turns": len(path) - turn,
            }
            info |= ({"fog": fog} if fog is not None else {}) | ({"subgoals": True} if subgoals else {})
            info |= ({"beliefs": beliefs} if beliefs is not None else {}) | pictured
            yield starting_row(World(), path[turn], info)
            yielded += 1
