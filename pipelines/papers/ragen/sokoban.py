"""Sokoban as text: push every box onto a target, one move a turn.

######      # wall, _ floor, O target, X box, P you;
#__P_#      * a box on a target, S you on one;
#__X_#      answer with up, down, left or right
#__O_#
######

The world of RAGEN (arXiv 2504.20073) with the rules and the rewards of gym-sokoban and the letters of RAGEN's released code, but for `*`.
With `shows: image` the board is a picture: walls are dark, targets rose, boxes brown squares, green on a target, and you a blue disc.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, validate_call

from pipelines.base.errors import RecipeError
from pipelines.data.records import Message, Problem
from pipelines.environments import Step, _drawn
from pipelines.environments._answered import Part, belongs
from pipelines.environments._rows import accepted, starting_row

Paid = Literal["game", "success"]
ACTIONS = ("up", "down", "left", "right")
SEPARATOR = "||"
"""Between the moves of one message, as RAGEN has it."""
MOVE, BOX, SOLVED = -0.1, 1.0, 10.0
"""gym-sokoban's rewards: of every move, of a box that comes onto a target (its negative: off one), of the last box."""
PULLS_PER_BOX = 20
"""Steps of the walk that plays a board backwards."""
MAX_STATES = 200_000
"""A board whose search sees more is drawn again."""
MAX_REFUSED = 2_000
"""Rejected boards in a row before `problems` raises."""
_FLOOR, _TARGET = (240, 234, 220), (246, 176, 176)
TILES = {
    "#": _drawn.Tile((70, 62, 58)),
    "_": _drawn.Tile(_FLOOR),
    "O": _drawn.Tile(_TARGET),
    "X": _drawn.Tile(_FLOOR, "square", (150, 100, 40)),
    "*": _drawn.Tile(_TARGET, "square", (40, 160, 60)),
    "P": _drawn.Tile(_FLOOR, "disc", (40, 70, 220)),
    "S": _drawn.Tile(_TARGET, "disc", (40, 70, 220)),
}

PLAYED = True
SHOWS_IMAGES = True


class Room(NamedTuple):
    """What does not move. A cell is row * (columns + 1) + column; the column after the last one is no floor, nor is what is outside."""

    rows: int
    columns: int
    floor: frozenset[int]
    targets: frozenset[int]

    def offsets(self) -> dict[str, int]:
        """Action → what it adds to a cell."""
        return dict(zip(ACTIONS, (-self.columns - 1, self.columns + 1, -1, 1), strict=True))


class State(NamedTuple):
    """What moves, as cells."""

    player: int
    boxes: frozenset[int]


def parse(rows: list[str]) -> tuple[Room, State]:
    """Room and state of a picture's lines.

    Raises:
        RecipeError: not one player, no box, or not as many boxes as targets.
    """
    columns = max(map(len, rows))
    cells = {r * (columns + 1) + c: kind for r, row in enumerate(rows) for c, kind in enumerate(row)}
    players = [cell for cell, kind in cells.items() if kind in "PS"]
    boxes = frozenset(cell for cell, kind in cells.items() if kind in "X*")
    targets = frozenset(cell for cell, kind in cells.items() if kind in "O*S")
    if len(players) != 1 or not boxes or len(boxes) != len(targets):
        raise RecipeError(
            "info.map", "a board of sokoban has one player (P or S), and as many boxes (X, *) as targets (O, *, S)."
        )
    floor = frozenset(cell for cell, kind in cells.items() if kind in "_OX*PS")
    return Room(len(rows), columns, floor, targets), State(players[0], boxes)


def picture(room: Room, state: State | None) -> str:
    """The board as the policy sees it; without a state, the empty room.

    >>> print(picture(*parse(["####", "#PX#", "#O_#", "####"])))
    ####
    #PX#
    #O_#
    ####
    """

    def letter(cell: int) -> str:
        if cell not in room.floor:
            return "#"
        on_target = cell in room.targets
        if state is not None and cell == state.player:
            return "S" if on_target else "P"
        if state is not None and cell in state.boxes:
            return "*" if on_target else "X"
        return "O" if on_target else "_"

    width = room.columns + 1
    return "\n".join("".join(letter(r * width + c) for c in range(room.columns)) for r in range(room.rows))


def moved(room: Room, state: State, offset: int) -> State:
    """The state after a move, which pushes a box that stands in the way; the same state where it is not possible."""
    ahead, beyond = state.player + offset, state.player + 2 * offset
    if ahead not in room.floor:
        return state
    if ahead not in state.boxes:
        return State(ahead, state.boxes)
    if beyond not in room.floor or beyond in state.boxes:
        return state
    return State(ahead, (state.boxes - {ahead}) | {beyond})


def live_cells(room: Room) -> set[int]:
    """Cells from which a box that is alone can be pushed onto a target."""
    live, queue = set(room.targets), deque(room.targets)
    while queue:
        cell = queue.popleft()
        for offset in room.offsets().values():
            before, player = cell - offset, cell - 2 * offset
            if before not in live and before in room.floor and player in room.floor:
                live.add(before)
                queue.append(before)
    return live


def solution(room: Room, state: State, longest: int) -> list[str] | None:
    """A shortest solution by breadth-first search; None where there is none of at most `longest` moves, or after `MAX_STATES` states.

    States with a box on a cell that is not live are left out: none of them can be solved.

    >>> solution(*parse(["#####", "#P__#", "#_X_#", "#__O#", "#####"]), 9)
    ['down', 'right', 'up', 'right', 'down']
    """
    live, offsets = live_cells(room), room.offsets()
    came_from: dict[State, tuple[State, str] | None] = {state: None}
    queue = deque([(state, 0)])
    while queue and len(came_from) <= MAX_STATES:
        here, depth = queue.popleft()
        if here.boxes == room.targets:
            moves: list[str] = []
            while (step := came_from[here]) is not None:
                here = step[0]
                moves.append(step[1])
            return moves[::-1]
        for action, offset in offsets.items() if depth < longest else ():
            following = moved(room, here, offset)
            if following not in came_from and following.boxes <= live:
                came_from[following] = (here, action)
                queue.append((following, depth + 1))
    return None


def backwards(room: Room, state: State, draw: random.Random) -> State:
    """A random step back: every other time one that pulls a box, where one can be pulled."""
    steps, pulls = [], []
    for offset in room.offsets().values():
        back = state.player - offset
        if back not in room.floor or back in state.boxes:
            continue
        steps.append(State(back, state.boxes))
        if state.player + offset in state.boxes:
            pulls.append(State(back, (state.boxes - {state.player + offset}) | {state.player}))
    options = pulls if pulls and draw.random() < 0.5 else steps
    return draw.choice(options) if options else state


def board(draw: random.Random, rows: int, columns: int, boxes: int, walls: float) -> tuple[Room, State] | None:
    """A board that can be solved, as it is played backwards from its solved state; None where the draw gives no room for it.

    No box is on a target at the start, and every cell of the floor can be reached while no box is in the way.
    """
    width = columns + 1
    inner = [r * width + c for r in range(1, rows - 1) for c in range(1, columns - 1)]
    open_cells = {cell for cell in inner if draw.random() >= walls}
    if not open_cells:
        return None
    queue = deque([draw.choice(sorted(open_cells))])
    floor = set(queue)
    while queue:
        cell = queue.popleft()
        for neighbour in (cell - width, cell + width, cell - 1, cell + 1):
            if neighbour in open_cells and neighbour not in floor:
                floor.add(neighbour)
                queue.append(neighbour)
    if len(floor) < 2 * boxes + 1:
        return None
    player, *targets = draw.sample(sorted(floor), boxes + 1)
    room, state = Room(rows, columns, frozenset(floor), frozenset(targets)), State(player, frozenset(targets))
    for _ in range(PULLS_PER_BOX * boxes):
        state = backwards(room, state, draw)
    return None if state.boxes & room.targets else (room, state)


class World:
    """An episode on the board in the problem's info (`map`, lines of the picture), with its `reward`, `scale` and `actions`.

    Success: every box is on a target, which ends the episode. A move into a wall, or against a box that cannot move, moves nothing and
    is paid as a move; so is a message that is no action (RAGEN's released code takes 0.1 off it, too).
    """

    waits = False

    def __init__(self) -> None:
        self.room, self.state = Room(0, 0, frozenset(), frozenset()), State(0, frozenset())
        self.reward: Paid = "game"
        self.scale, self.actions = 1.0, 1
        self.view = _drawn.View()

    def reset(self, problem: Problem) -> list[Message]:
        """Start on the problem's board and send the messages in `walked` of its info."""
        about = problem.info
        self.view = _drawn.View.of(about)
        self._open(list(about["map"]), about.get("reward", "game"), about.get("scale", 1.0), about.get("actions", 1))
        messages: list[Message] = [{"role": "user", "content": self._shown()}]
        for message in about.get("walked", []):
            messages.append({"role": "assistant", "content": message})
            messages.append({"role": "user", "content": self.step(message).observation})
        return messages

    def _open(self, rows: list[str], reward: Paid, scale: float, actions: int) -> None:
        self.room, self.state = parse(rows)
        self.reward, self.scale, self.actions = reward, scale, actions

    def _picture(self) -> str:
        return picture(self.room, self.state)

    def _shown(self) -> str:
        return self.view.of_board(self._picture(), TILES)

    @property
    def solved(self) -> bool:
        """Whether every box is on a target."""
        return self.state.boxes == self.room.targets

    def state_key(self) -> str:
        """The board, which is all that matters."""
        return self._picture()

    def step(self, message: str) -> Step:
        """One move, or up to `actions` of them with || between; of a message with any other part nothing is moved."""
        if self.solved:
            return Step(self._shown(), 0.0, True, self.state_key(), {"success": True, "invalid": True})
        moves = [part.strip().lower() for part in message.split(SEPARATOR)]
        if len(moves) > self.actions or not set(moves) <= set(ACTIONS):
            return self._answer(1, 0, {"invalid": True})
        before, offsets, played = len(self.state.boxes & self.room.targets), self.room.offsets(), 0
        while played < len(moves) and not self.solved:
            self.state = moved(self.room, self.state, offsets[moves[played]])
            played += 1
        return self._answer(played, len(self.state.boxes & self.room.targets) - before, {})

    def _answer(self, moves: int, boxes: int, info: dict[str, Any]) -> Step:
        """The board, and what so many moves are paid that brought so many boxes onto targets."""
        if self.reward == "game":
            parts = {"moves": MOVE * moves, "boxes": BOX * boxes, "solved": SOLVED * self.solved}
        else:
            parts = {"solved": float(self.solved)}
        parts = {name: self.scale * value for name, value in parts.items()}
        info = {"success": self.solved, **info}
        return Step(self._shown(), sum(parts.values()), self.solved, self.state_key(), info, components=parts)

    def state_dict(self) -> dict[str, Any]:
        """Board and settings."""
        about = {"reward": self.reward, "scale": self.scale, "actions": self.actions, **self.view._asdict()}
        return {"map": self._picture().split("\n"), **about}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self.view = _drawn.View.of(state)
        self._open(list(state["map"]), state["reward"], state["scale"], state["actions"])


Count = Annotated[int, Field(strict=True, ge=1)]


@validate_call
def problems(
    size: int,
    seed: int,
    *,
    rows: Annotated[int, Field(strict=True, ge=3, le=16)] = 6,
    columns: Annotated[int, Field(strict=True, ge=3, le=16)] = 6,
    boxes: Annotated[int, Field(strict=True, ge=1, le=8)] = 1,
    walls: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.2,
    shortest: Count = 2,
    longest: Count = 10,
    actions: Count = 1,
    reward: Paid = "game",
    scale: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 1.0,
    part: Part | None = None,
    demonstrations: bool = False,
    shows: _drawn.Shows = "text",
    cell: _drawn.Cell = _drawn.CELL,
) -> Iterator[dict[str, Any]]:
    """Random boards that can be solved; the next message of a shortest solution is the solution.

    Args:
        size: rows.
        seed: of the boards.
        rows, columns: of the board, its outer walls among them.
        boxes: and as many targets.
        walls: chance that a cell inside is a wall.
        shortest, longest: moves of a shortest solution.
        actions: moves that a message may hold, with || between.
        reward: game: -0.1 a move, 1 for a box that comes onto a target and -1 for one that leaves it, 10 for the last one, as in RAGEN;
            success: 1 for the last one and nothing else.
        scale: what rewards are multiplied with; with 0.1 a solved board of one box is paid about 1.
        part: boards of the training or of the test rooms, by a hash of walls and targets; None: of all.
        demonstrations: one row per message of the expert, with those before it as the conversation, for SFT.
        shows: the board as an image, as text, or both.
        cell: width and height of a cell of the image in pixels.

    Raises:
        RecipeError: no board, or hardly any, is as asked for.
    """
    draw = random.Random(f"sokoban {seed}")

    def solvable() -> tuple[Any, list[str]] | None:
        drawn = board(draw, rows, columns, boxes, walls)
        if drawn is None or (part is not None and not belongs(picture(drawn[0], None), part)):
            return None
        moves = solution(*drawn, longest)
        return (drawn, moves) if moves is not None and len(moves) >= shortest else None

    problem = (
        f"environment sokoban: none of {MAX_REFUSED:,} boards of {rows} x {columns} with {boxes} boxes and {walls} walls has a "
        f"shortest solution of {shortest} to {longest} moves"
    )
    fix = "Lower `boxes`, `walls` or `shortest`, or raise `longest`."
    boards = accepted(solvable, MAX_REFUSED, problem, fix)
    yielded = 0
    while yielded < size:
        drawn, moves = next(boards)
        path = [SEPARATOR.join(moves[i : i + actions]) for i in range(0, len(moves), actions)]
        for turn in range(len(path) if demonstrations else 1):
            if yielded >= size:
                return
            info: dict[str, Any] = {
                "environment": "sokoban",
                "map": picture(*drawn).split("\n"),
                "reward": reward,
                "scale": scale,
                "actions": actions,
                "walked": path[:turn],
                "solution": path[turn],
                "expert_turns": math.ceil(len(moves) / actions) - turn,
                **_drawn.about(shows, cell),
            }
            yield starting_row(World(), path[turn], info)
            yielded += 1
