"""Questions about small pictures, drawn from a seed, with exact answers: colours of cells, counts, places, bars and boxes.

    colour   Which colour is cell 6?                                ->  red
    count    How many cells are red?                                ->  3
    place    Which is further left, red or blue?                    ->  blue
    chart    How long is the red bar?                               ->  4
    box      What is the bounding box of red? [x1, y1, x2, y2]      ->  [8, 0, 24, 16]
    point    Point at red. [x, y]                                   ->  [12, 8]

Each has a twin in text: the same question about the same cells, written as letters (`shows: text`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field, validate_call

from pipelines.data.images import IMAGES
from pipelines.environments._answered import Part, World, belongs
from pipelines.environments._drawn import CELL, Cell, Shows

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["World", "problems"]

Kind = Literal["colour", "count", "place", "chart", "box", "point"]
COLOURS = {
    "red": (220, 40, 40), "blue": (40, 70, 220), "green": (40, 160, 60), "yellow": (235, 205, 40),
    "purple": (140, 60, 170), "orange": (240, 135, 30), "black": (20, 20, 20), "cyan": (60, 200, 215),
}  # fmt: skip
"""Their first letters, by which texts name them, are distinct but for black and blue: black is `k`."""
LETTERS = {name: "k" if name == "black" else name[0] for name in COLOURS}
EMPTY = "."
VERIFIERS = ("exact", "number", "grounding")
SHOWS_IMAGES = True


class Question(NamedTuple):
    """What is asked of a grid of colours ("" is no colour), and the answers: the right one, and those that an erring expert may write."""

    cells: list[list[str]]
    text: str
    answer: str
    verifier: str
    others: list[str]
    info: dict[str, Any]


def drawn(cells: list[list[str]], cell: int) -> Image:
    """The grid as a picture on white, `cell` pixels a cell.

    >>> image = drawn([["red", ""], ["", "blue"]], 4)
    >>> image.size, image.getpixel((0, 0)), image.getpixel((4, 0)), image.getpixel((7, 7))
    ((8, 8), (220, 40, 40), (255, 255, 255), (40, 70, 220))
    """
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (cell * len(cells[0]), cell * len(cells)), "white")
    pen = ImageDraw.Draw(image)
    for r, row in enumerate(cells):
        for c, colour in enumerate(row):
            if colour:
                pen.rectangle((c * cell, r * cell, (c + 1) * cell - 1, (r + 1) * cell - 1), fill=COLOURS[colour])
    return image


def written(cells: list[list[str]]) -> str:
    """The grid as text, a letter a cell.

    >>> written([["red", ""], ["black", "blue"]])
    'r.\\nkb'
    """
    return "\n".join("".join(LETTERS[colour] if colour else EMPTY for colour in row) for row in cells)


def _colour(draw: random.Random, side: int, colours: list[str], cell: int) -> Question:
    cells = [[draw.choice(colours) for _ in range(side)] for _ in range(side)]
    number = draw.randrange(side * side)
    answer = cells[number // side][number % side]
    others = [colour for colour in colours if colour != answer]
    return Question(cells, f"Which colour is cell {number + 1}?", answer, "exact", others, {})


def _count(draw: random.Random, side: int, colours: list[str], cell: int) -> Question:
    cells = [[draw.choice(["", *colours]) for _ in range(side)] for _ in range(side)]
    colour = draw.choice(colours)
    count = sum(row.count(colour) for row in cells)
    others = [str(other) for other in range(max(0, count - 2), count + 3) if other != count]
    return Question(cells, f"How many cells are {colour}?", str(count), "number", others, {})


def _place(draw: random.Random, side: int, colours: list[str], cell: int) -> Question:
    cells = [[""] * side for _ in range(side)]
    first, other = draw.sample(colours, 2)
    (a, b), (c, d) = (divmod(number, side) for number in draw.sample(range(side * side), 2))
    cells[a][b], cells[c][d] = first, other
    word, before, after = draw.choice([("left", b, d), ("right", d, b), ("up", a, c), ("down", c, a)])
    if before == after:  # neither is: `problems` draws again
        return Question(cells, "", "", "exact", [], {})
    answer, opposite = (first, other) if before < after else (other, first)
    return Question(cells, f"Which is further {word}, {first} or {other}?", answer, "exact", [opposite], {})


def _chart(draw: random.Random, side: int, colours: list[str], cell: int) -> Question:
    bars = draw.sample(colours, min(side, len(colours)))
    lengths = [draw.randint(1, side) for _ in bars]
    cells = [[bar] * length + [""] * (side - length) for bar, length in zip(bars, lengths, strict=True)]
    asked = draw.randrange(len(bars))
    others = [str(other) for other in range(1, side + 1) if other != lengths[asked]]
    return Question(cells, f"How long is the {bars[asked]} bar?", str(lengths[asked]), "number", others, {})


def _rectangle(draw: random.Random, side: int) -> tuple[int, int, int, int]:
    """First column and row of a rectangle of cells, and the first ones beyond it."""
    x1, x2 = sorted(draw.sample(range(side + 1), 2))
    y1, y2 = sorted(draw.sample(range(side + 1), 2))
    return x1, y1, x2, y2


def _scene(
    draw: random.Random, side: int, colours: list[str]
) -> tuple[list[list[str]], str, tuple[int, int, int, int]]:
    """A rectangle of one colour, cells of others around it, the colour, and the rectangle."""
    colour = draw.choice(colours)
    x1, y1, x2, y2 = rectangle = _rectangle(draw, side)
    around = ["", "", "", *(each for each in colours if each != colour)]
    cells = [
        [colour if x1 <= c < x2 and y1 <= r < y2 else draw.choice(around) for c in range(side)] for r in range(side)
    ]
    return cells, colour, rectangle


def _box(draw: random.Random, side: int, colours: list[str], cell: int) -> Question:
    cells, colour, rectangle = _scene(draw, side, colours)
    answer = json.dumps([cell * edge for edge in rectangle])
    others = [json.dumps([cell * edge for edge in _rectangle(draw, side)]) for _ in range(3)]
    text = f"What is the bounding box of {colour}? [x1, y1, x2, y2]"
    return Question(cells, text, answer, "grounding", [other for other in others if other != answer], {"metric": "iou"})


def _point(draw: random.Random, side: int, colours: list[str], cell: int) -> Question:
    cells, colour, rectangle = _scene(draw, side, colours)
    box = [cell * edge for edge in rectangle]
    x1, y1, x2, y2 = box
    outside = [
        [cell * c + cell // 2, cell * r + cell // 2] for r in range(side) for c in range(side) if cells[r][c] != colour
    ]
    middle = [(x1 + x2) // 2, (y1 + y2) // 2]
    info = {"metric": "point", "solution_point": json.dumps(middle)}
    return Question(
        cells, f"Point at {colour}. [x, y]", json.dumps(box), "grounding", [*map(json.dumps, outside)], info
    )


QUESTIONS = {"colour": _colour, "count": _count, "place": _place, "chart": _chart, "box": _box, "point": _point}


def _message(question: Question, shows: Shows, cell: int) -> str:
    image = IMAGES.add(drawn(question.cells, cell)) if shows != "text" else ""
    scale = f"A letter is {cell} pixels wide and high. " if shows == "text" and question.verifier == "grounding" else ""
    text = f"{written(question.cells)}\n" if shows != "image" else ""
    return "\n".join(part for part in (image, f"{text}{scale}{question.text}") if part)


@validate_call
def problems(
    size: int,
    seed: int,
    *,
    kinds: Annotated[list[Kind], Field(min_length=1)] = ["colour"],  # noqa: B006  (pydantic copies it)
    shows: Shows = "image",
    side: Annotated[int, Field(strict=True, ge=2, le=16)] = 4,
    cell: Cell = CELL,
    colours: Annotated[int, Field(strict=True, ge=2, le=len(COLOURS))] = 4,
    part: Part = "train",
    demonstrations: bool = False,
    errors: Annotated[float, Field(ge=0, le=1)] = 0.0,
    graded: bool = False,
) -> Iterator[dict[str, Any]]:
    """Questions in turn of each kind; a question is of the part that its cells and its words fall into, in a picture and in text alike.

    Args:
        size: rows.
        seed: of the questions; the same ones are drawn for every `shows`.
        kinds: of colour, count, place, chart, box and point.
        shows: the cells as an image, as text, or both.
        side: rows and columns of cells.
        cell: width and height of a cell in pixels.
        colours: how many there are.
        part: `train` or `test`.
        demonstrations: with an expert's answer as the solution, for SFT.
        errors: share of the expert's answers that are wrong.
        graded: score boxes by their IoU instead of 1 from half of it on.
    """
    draw, choices = random.Random(f"drawn questions {seed}"), random.Random(f"drawn questions {seed} choices")
    names = list(COLOURS)[:colours]
    yielded = 0
    while yielded < size:
        kind = kinds[yielded % len(kinds)]
        question = QUESTIONS[kind](draw, side, names, cell)
        if not question.text or not belongs(f"{written(question.cells)}\n{question.text}", part):
            continue
        info: dict[str, Any] = {"environment": "drawn_questions", "question": kind, **question.info}
        solution = info.pop("solution_point", question.answer)
        if question.verifier == "grounding":
            info |= {"size": [side * cell, side * cell], "threshold": 0.5} | ({"graded": True} if graded else {})
        if demonstrations:
            errs = question.others and choices.random() < errors
            info["solution"] = choices.choice(question.others) if errs else solution
        prompt = [{"role": "user", "content": _message(question, shows, cell)}]
        yield {"prompt": prompt, "answer": question.answer, "verifier": question.verifier, "info": info}
        yielded += 1
