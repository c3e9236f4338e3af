"""Boards as pictures, drawn here tile by tile: what a game shows in place of its text, or beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field

from pipelines.base.errors import RecipeError

if TYPE_CHECKING:
    from PIL.Image import Image

Shows = Literal["image", "text", "both"]
"""A board as an image, as text, or as the image with the text below it."""
CELL = 8
"""Pixels of a cell, where nobody says otherwise."""
Cell = Annotated[int, Field(strict=True, ge=2, le=64)]
Colour = tuple[int, int, int]
SHAPES: dict[str, Callable[[float, float], bool]] = {
    "": lambda x, y: False,
    "square": lambda x, y: max(abs(x), abs(y)) < 0.7,
    "disc": lambda x, y: x * x + y * y < 0.7,
    "ring": lambda x, y: 0.25 < x * x + y * y < 0.8,
    "cross": lambda x, y: abs(abs(x) - abs(y)) < 0.3 and max(abs(x), abs(y)) < 0.85,
    "diamond": lambda x, y: abs(x) + abs(y) < 0.95,
}
"""Which points of a cell belong to a shape; its middle is (0, 0), and its edges are at -1 and 1."""


class Tile(NamedTuple):
    """What stands in a cell."""

    ground: Colour
    shape: str = ""
    colour: Colour = (0, 0, 0)
    line: Colour | None = None
    """Of the cell's left and upper edge; None for none."""


@lru_cache(maxsize=1024)
def _pixels(tile: Tile, cell: int) -> Image:
    """The picture of a cell. Its pixels are computed here, so that no release of an imaging library changes them."""
    from PIL import Image

    inside = SHAPES[tile.shape]

    def pixel(column: int, row: int) -> Colour:
        if tile.line is not None and 0 in (column, row):
            return tile.line
        return tile.colour if inside((2 * column + 1) / cell - 1, (2 * row + 1) / cell - 1) else tile.ground

    return Image.frombytes("RGB", (cell, cell), bytes(v for r in range(cell) for c in range(cell) for v in pixel(c, r)))


def board(text: str, tiles: Mapping[str, Tile], cell: int = CELL) -> Image:
    """The picture of a board, `cell` pixels a letter of its text.

    >>> image = board("A.\\n.A", {"A": Tile((255, 255, 255), "disc", (200, 0, 0)), ".": Tile((255, 255, 255))}, 4)
    >>> image.size, image.getpixel((0, 0)), image.getpixel((1, 1)), image.getpixel((5, 1))
    ((8, 8), (255, 255, 255), (200, 0, 0), (255, 255, 255))
    """
    from PIL import Image

    rows = text.split("\n")
    image = Image.new("RGB", (cell * len(rows[0]), cell * len(rows)))
    for r, row in enumerate(rows):
        for c, letter in enumerate(row):
            image.paste(_pixels(tiles[letter], cell), (c * cell, r * cell))
    return image


class View(NamedTuple):
    """How a game is shown; its fields are those of a problem's info (`about`)."""

    shows: Shows = "text"
    cell: int = CELL

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> View:
        """As a problem's info, or a world's state, says."""
        return cls(**{name: info[name] for name in cls._fields if name in info})

    def of_board(self, text: str, tiles: Mapping[str, Tile]) -> str:
        """What the policy reads of a board: its text, the mark of its image, or both.

        Args:
            text: a line for each row, a letter for each cell.
            tiles: what each letter looks like.
        """
        if self.shows == "text":
            return text
        from pipelines.data.images import IMAGES  # most games are played in text

        mark = IMAGES.add(board(text, tiles, self.cell))
        return f"{mark}\n{text}" if self.shows == "both" else mark


def about(shows: Shows, cell: int) -> dict[str, Any]:
    """What the info of a game's problems says of how it is shown; nothing where it is shown as text.

    Raises:
        RecipeError: a setting is out of its bounds.
    """
    if shows not in get_args(Shows):
        raise RecipeError("config.shows", f"{shows!r} is none of {', '.join(get_args(Shows))}.")
    if not isinstance(cell, int) or not 2 <= cell <= 64:
        raise RecipeError("config.cell", f"a cell has from 2 to 64 pixels, and not {cell!r}.")
    return {} if shows == "text" else {"shows": shows, "cell": cell}
