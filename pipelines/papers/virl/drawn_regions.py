"""Questions about small marks in a large picture, drawn from a seed: which colour is the mark on the ground of a colour?

A model that reads pictures at a fixed size sees the grounds of all regions, and a mark only in a crop: the tool `crop` shows a part of the
picture alone. `info.rationales` has the box that the question needs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, validate_call

from pipelines.data.images import IMAGES
from pipelines.data.marks import marked
from pipelines.data.records import Message
from pipelines.environments import _drawn
from pipelines.environments._answered import Part, belongs
from pipelines.environments.drawn_questions import COLOURS
from pipelines.environments.tools import World
from pipelines.tools import call_text, toolbox

__all__ = ["World", "problems"]

VERIFIERS = ("exact",)
SHOWS_IMAGES = True
SIDE = 2
"""Rows and columns of regions."""
GROUNDS = ("red", "blue", "green", "yellow", "purple", "orange", "cyan")
MARKS = {"white": (255, 255, 255), "black": (0, 0, 0), "pink": (255, 150, 200), "brown": (120, 70, 20)}


def _picture(grounds: list[str], marks: list[tuple[str, int, int]], cell: int) -> Any:
    """Regions with their grounds, and in each a square mark a quarter as wide: its colour, and where it is."""
    from PIL import Image

    image = Image.new("RGB", (SIDE * cell, SIDE * cell))
    size = cell // 4
    for number, (ground, (mark, x, y)) in enumerate(zip(grounds, marks, strict=True)):
        left, top = cell * (number % SIDE), cell * (number // SIDE)
        image.paste(COLOURS[ground], (left, top, left + cell, top + cell))
        image.paste(MARKS[mark], (left + x, top + y, left + x + size, top + y + size))
    return image


@validate_call
def problems(
    size: int,
    seed: int,
    *,
    cell: _drawn.Cell = 64,
    colours: Annotated[int, Field(strict=True, ge=2, le=len(MARKS))] = len(MARKS),
    part: Part = "train",
    schemas: bool = True,
    demonstrations: bool = False,
    errors: Annotated[float, Field(ge=0, le=1)] = 0.0,
) -> Iterator[dict[str, Any]]:
    """Pictures of regions with different grounds, with a mark in each, and a question about one of them.

    Args:
        size: rows.
        seed: of the questions.
        cell: width and height of a region in pixels.
        colours: of marks.
        part: `train` or `test`; a picture with its question is of one of them.
        schemas: show the tool's schema in the prompt, where the chat template has a place for it.
        demonstrations: with an expert's conversation, for `sft.turns: all`: a crop, then the answer.
        errors: share of the expert's crops that show another region; its answers are right all the same.
    """
    draw = random.Random(f"drawn regions {seed}")
    choices = random.Random(f"drawn regions {seed} choices")
    yielded = 0
    while yielded < size:
        grounds = draw.sample(GROUNDS, SIDE * SIDE)
        marks = [
            (draw.choice(list(MARKS)[:colours]), draw.randrange(cell * 3 // 4), draw.randrange(cell * 3 // 4))
            for _ in grounds
        ]
        asked = draw.randrange(SIDE * SIDE)
        if not belongs(repr((grounds, marks, asked)), part):
            continue
        shown = IMAGES.add(_picture(grounds, marks, cell))
        boxes = [
            [cell * (n % SIDE), cell * (n // SIDE), cell * (n % SIDE + 1), cell * (n // SIDE + 1)]
            for n in range(SIDE * SIDE)
        ]
        prompt: list[Message] = [{"role": "user", "content": f"{shown}Which colour is the mark on {grounds[asked]}?"}]
        spec = {"kind": "crop", "image": marked(shown)[0]}
        info: dict[str, Any] = {"environment": "drawn_regions", "toolbox": [spec], "rationales": [boxes[asked]]}
        box = toolbox([spec])
        info |= {"tools": box.schemas} if schemas else {}
        answer = marks[asked][0]
        if demonstrations:
            errs = choices.random() < errors
            shown_region = choices.choice([n for n in range(SIDE * SIDE) if n != asked]) if errs else asked
            call = call_text("crop", {"box": boxes[shown_region]})
            reply = box.call("crop", {"box": boxes[shown_region]}).text
            prompt = [*prompt, {"role": "assistant", "content": call}, {"role": "tool", "content": reply}]
            info |= {"solution": answer}
        yield {"prompt": prompt, "answer": answer, "verifier": "exact", "info": info}
        yielded += 1
