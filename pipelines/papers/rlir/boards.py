"""Boards as text: what an action makes of one, and which action made one of another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from pipelines.base.errors import RecipeError
from pipelines.environments import frozen_lake
from pipelines.papers.ragen import sokoban
from pipelines.papers.spiral import tic_tac_toe

PLAYER = "AX"
"""Of FrozenLake, on the ice and in a hole."""


@dataclass(frozen=True)
class Dynamics:
    """An environment whose next board depends on the board and the action alone."""

    actions: Callable[[str], Sequence[str]]
    """That a board allows."""
    after: Callable[[str, str], str]
    """The board after an action that it allows; what has no sense on the board leaves it as it is."""
    trace: Callable[[str], Hashable]
    """What an action shows itself in: the place of the player, the squares that are taken; None where that cannot be read."""
    over: Callable[[str, str], bool]
    """Whether an episode ends with a step, from the boards before and after it."""


def recovered(world: str, before: str, after: str) -> str | None:
    """The action that made one board of another, by its trace alone; None where none or several would have left that trace.

    >>> recovered("frozen_lake", "A.\\n.G", ".A\\n.G"), recovered("frozen_lake", "A.\\n.G", "A.\\n.G")
    ('right', None)
    >>> recovered("frozen_lake", "A.\\n.G", ".A\\n.."), recovered("tic_tac_toe", "123\\n456\\n789", "1X3\\n456\\n789")
    ('right', '2')
    """
    dynamics = WORLDS[world]
    trace = dynamics.trace(after)
    if trace is None or dynamics.trace(before) is None:
        return None
    fitting = [a for a in dynamics.actions(before) if dynamics.trace(dynamics.after(before, a)) == trace]
    return fitting[0] if len(fitting) == 1 else None


def _place(board: str, letters: str) -> Hashable:
    """Rows, columns, and the cell of the only one of the letters; None where there is none or several, or rows differ in length."""
    rows = board.split("\n")
    cells = [(r, c) for r, row in enumerate(rows) for c, kind in enumerate(row) if kind in letters]
    return (len(rows), len(rows[0]), *cells[0]) if len(cells) == 1 and len({*map(len, rows)}) == 1 else None


def _lake_after(board: str, action: str) -> str:
    rows = [list(row) for row in board.split("\n")]
    row, column = next((r, c) for r, cells in enumerate(rows) for c, kind in enumerate(cells) if kind in PLAYER)
    row_step, column_step = frozen_lake.MOVES[action]
    rows[row][column] = "."
    row, column = min(max(row + row_step, 0), len(rows) - 1), min(max(column + column_step, 0), len(rows[0]) - 1)
    rows[row][column] = "X" if rows[row][column] == "O" else "A"
    return "\n".join(map("".join, rows))


def _sokoban_after(board: str, action: str) -> str:
    try:
        room, state = sokoban.parse(board.split("\n"))
    except RecipeError:
        return board
    return sokoban.picture(room, sokoban.moved(room, state, room.offsets()[action]))


def _game_after(board: str, action: str) -> str:
    cells = tic_tac_toe.placed(board.replace("\n", ""), action)
    return "\n".join(cells[at : at + 3] for at in (0, 3, 6))


def _taken(board: str) -> Hashable:
    """The squares of tic-tac-toe without their number, whoever has them; None where it is no board."""
    cells = board.replace("\n", "")
    known = [*map(len, board.split("\n"))] == [3, 3, 3] and all(
        cell in (number, *tic_tac_toe.MARKS) for cell, number in zip(cells, tic_tac_toe.EMPTY, strict=True)
    )
    return tuple(tic_tac_toe.free(cells)) if known else None


def _game_over(board: str) -> bool:
    cells = board.replace("\n", "")
    return tic_tac_toe.winner(cells) is not None or not tic_tac_toe.free(cells)


WORLDS = {
    "frozen_lake": Dynamics(
        lambda board: frozen_lake.ACTIONS,
        _lake_after,
        lambda board: _place(board, PLAYER),
        lambda before, after: sum(map(after.count, "OG")) < sum(map(before.count, "OG")),
    ),
    "sokoban": Dynamics(
        lambda board: sokoban.ACTIONS,
        _sokoban_after,
        lambda board: _place(board, "PS"),
        lambda before, after: "X" not in after,
    ),
    "tic_tac_toe": Dynamics(
        lambda board: [] if _game_over(board) else tic_tac_toe.free(board.replace("\n", "")),
        _game_after,
        _taken,
        lambda before, after: _game_over(after),
    ),
}
"""Environment → its boards. An episode's first board is the policy's first observation, in tic-tac-toe without its first line."""
