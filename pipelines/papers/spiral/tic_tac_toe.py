"""Tic-tac-toe: three in a row wins. Free squares have numbers, a move is the number.

You are X.
12X
4O6
78X

With `shows: image` the board is a picture, in which free squares are empty.

Small enough to be solved whole: the exact player's moves and the value of every position come from minimax over 4,520 positions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from typing import Annotated, Any

from pydantic import Field, validate_call

from pipelines.environments import _drawn
from pipelines.environments._answered import Part, belongs
from pipelines.papers.spiral.game import GameWorld, Opponent, rows, seats_of

SHOWS_IMAGES = True
EMPTY = "123456789"
MARKS = "XO"
_PAPER, _LINE = (255, 255, 255), (120, 120, 120)
TILES = dict.fromkeys(EMPTY, _drawn.Tile(_PAPER, line=_LINE)) | {
    "X": _drawn.Tile(_PAPER, "cross", (220, 40, 40), _LINE),
    "O": _drawn.Tile(_PAPER, "ring", (40, 70, 220), _LINE),
}
LINES = ("123", "456", "789", "147", "258", "369", "159", "357")


def winner(board: str) -> str | None:
    """The mark with three in a row."""
    for line in LINES:
        marks = {board[int(square) - 1] for square in line}
        if len(marks) == 1:
            return marks.pop()
    return None


def free(board: str) -> list[str]:
    """The moves of a board: its digits."""
    return [square for square in board if square in EMPTY]


def to_move(board: str) -> str:
    """The mark that is set next; X begins."""
    return MARKS[(9 - len(free(board))) % 2]


def placed(board: str, move: str) -> str:
    """The board after a move.

    >>> placed("12X4O6789", "9")
    '12X4O678X'
    """
    return board.replace(move, to_move(board))


@cache
def value(board: str) -> int:
    """What the board is worth to the player who is to move, where both play perfectly: 1 won, 0 drawn, -1 lost.

    >>> value(EMPTY), value("XX34O6O89"), value("X2O456789")
    (0, 1, 1)
    """
    if winner(board):
        return -1
    return max((-value(placed(board, move)) for move in free(board)), default=0)


def best_moves(board: str) -> list[str]:
    """All moves that hold the board's value.

    >>> best_moves("X23456789"), best_moves("XX34O6O89")
    (['5'], ['3'])
    """
    return [move for move in free(board) if -value(placed(board, move)) == value(board)]


@cache
def positions(plies: int) -> tuple[str, ...]:
    """All boards after at most so many moves on which the game goes on, in order."""
    boards, layer = {EMPTY}, {EMPTY}
    for _ in range(plies):
        layer = {placed(board, move) for board in layer for move in free(board)}
        layer = {board for board in layer if not winner(board) and free(board)}
        boards |= layer
    return tuple(sorted(boards))


def played_to(board: str) -> list[str]:
    """Moves that lead to the board.

    >>> played_to("12X4O678X")
    ['3', '5', '9']
    """
    squares = {mark: [number for number, cell in zip(EMPTY, board, strict=True) if cell == mark] for mark in MARKS}
    return [squares[MARKS[turn % 2]][turn // 2] for turn in range(9 - len(free(board)))]


class World(GameWorld):
    """A game from the position after `opened` of the problem's info; a win pays 1, a loss -1, a draw 0.

    The exact player draws among all moves that hold the position's value.
    """

    LOST = -1.0

    @property
    def board(self) -> str:
        """Nine squares, row by row: X, O, or the number of a free one."""
        board = EMPTY
        for move in self.moves:
            board = placed(board, move)
        return board

    def next_seat(self) -> int | None:
        """X has seat 0."""
        return None if winner(self.board) or not free(self.board) else len(self.moves) % 2

    def legal(self) -> list[str]:
        """Free squares."""
        return free(self.board)

    def observation(self, seat: int) -> str:
        """The seat's mark and the board."""
        board = "\n".join(self.board[at : at + 3] for at in (0, 3, 6))
        return f"You are {MARKS[seat]}.\n{_drawn.View.of(self.info).of_board(board, TILES)}"

    def payoffs(self) -> tuple[float, float]:
        """1 and -1, or nothing for a draw."""
        mark = winner(self.board)
        return (0.0, 0.0) if mark is None else (1.0, -1.0) if mark == "X" else (-1.0, 1.0)

    def best(self) -> dict[str, float]:
        """Equal chances of all best moves."""
        return dict.fromkeys(best_moves(self.board), 1.0)


@validate_call
def problems(
    size: int,
    seed: int,
    *,
    opponent: Opponent = "random",
    opening: Annotated[int, Field(strict=True, ge=0, le=8)] = 1,
    part: Part | None = None,
    demonstrations: bool = False,
    errors: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.0,
    shows: _drawn.Shows = "text",
    cell: _drawn.Cell = _drawn.CELL,
) -> Iterator[dict[str, Any]]:
    """Every position of at most `opening` moves once, in random order; the policy moves first, and the opponent answers.

    Its `value` in the info is what perfect play from there would bring.

    Args:
        size: rows at most; with `demonstrations` every position may have several games.
        seed: of the order, and of the opponent's luck in demonstrations.
        opponent: who has the other seat: random (any legal move), perfect (minimax), or policy: self-play in both seats.
        opening: moves that were made before; 0 is the empty board alone, 1 that and every first move, 8 every position.
        part: positions of the training or of the test part, by a hash.
        demonstrations: games of the exact player against the opponent, one row per message, for SFT.
        errors: share of its moves that are any legal move; with 1 it teaches the form of a move and nothing else.
        shows: the board as an image, as text, or both.
        cell: width and height of a square of the image in pixels.

    Raises:
        RecipeError: demonstrations against the policy.
    """
    draw = random.Random(f"tic_tac_toe {seed}")
    boards = [board for board in positions(opening) if part is None or belongs(board, part)]
    draw.shuffle(boards)
    infos = (
        {
            "environment": "tic_tac_toe",
            "opponent": opponent,
            "seats": seats_of(opponent, len(moves) % 2, demonstrations),
            "opened": moves,
            "value": value(board),
            "seed": draw.randrange(2**31),
            **_drawn.about(shows, cell),
        }
        for board in (cycle(boards) if demonstrations else boards)
        for moves in (played_to(board),)
    )
    return rows(World, infos, size, demonstrations, errors, draw)
