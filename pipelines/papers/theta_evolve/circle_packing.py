"""Circles in the unit square with a large sum of radii: an open problem for `rollout: theta_evolve`, and programs to learn edits from.

    def construct():
        return [
            [.25, .25, .21],      x, y and radius of each circle
            [.70, .74, .18],
        ]

Without demonstrations there is one problem, with a program to start from. With them each row shows some
other program and its score as the search does, and the solution edits it: a circle is moved and resized by a few hundredths, so that
the program still fulfils the rules; whether its score grows is left to chance.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.environments._answered import World
from pipelines.papers.theta_evolve.edits import MIDDLE, REPLACE, SEARCH
from pipelines.verifiers._constructions import circle_packing

__all__ = ["World", "problems"]

TEMPLATE = "{task}\n# {score}\n{program}"
"""How demonstrations show a program; the recipe's `rollout.template` where the policy learned from them."""
MOST_REFUSED = 10_000
MOVE = 6
"""Hundredths by which an edit moves and resizes a circle, at most."""

Circle = tuple[int, int, int]
"""x, y and radius in hundredths."""
VERIFIERS = ("construction",)


def program(circles: list[Circle]) -> str:
    """The source of a program that returns the circles.

    >>> print(program([(25, 50, 7)]))
    def construct():
        return [
            [.25, .50, .07],
        ]
    """
    lines = [f"        {_line(circle)}" for circle in circles]
    return "\n".join(["def construct():", "    return [", *lines, "    ]"])


def _line(circle: Circle) -> str:
    x, y, radius = circle
    return f"[.{x:02d}, .{y:02d}, .{radius:02d}],"


def _value(circles: list[Circle]) -> float | None:
    """Sum of the radii; None where the circles break a rule."""
    return circle_packing([[number / 100 for number in circle] for circle in circles], {"circles": len(circles)})


def _packed(draw: random.Random, count: int) -> list[Circle]:
    """Circles at random places, with room between them."""
    circles: list[Circle] = []
    for _ in range(MOST_REFUSED):
        candidate = (draw.randint(8, 92), draw.randint(8, 92), draw.randint(2, max(3, 40 // count)))
        if _value([*circles, candidate]) is not None:
            circles.append(candidate)
        if len(circles) == count:
            return circles
    raise RecipeError(f"environment circle_packing: {count} circles did not fit", fix="Take fewer.")


def _changed(draw: random.Random, circles: list[Circle]) -> tuple[int, Circle]:
    """A circle that is moved and resized so that the rules are kept, and its place in the list."""
    for _ in range(MOST_REFUSED):
        place = draw.randrange(len(circles))
        x, y, radius = (min(99, max(1, number + draw.randint(-MOVE, MOVE))) for number in circles[place])
        circle = (x, y, radius)
        if circle != circles[place] and _value([*circles[:place], circle, *circles[place + 1 :]]) is not None:
            return place, circle
    raise RecipeError("environment circle_packing: no circle could be moved.")  # a radius can always shrink


def problems(size: int, seed: int, *, circles: int = 3, demonstrations: bool = False) -> Iterator[dict[str, Any]]:
    """One open problem, or edits of programs for it.

    Args:
        size: rows; 1 without demonstrations.
        seed: of the programs.
        circles: in each program, from 1 to 20.
        demonstrations: with an edit as the solution, for SFT.

    Raises:
        RecipeError: too many circles or problems.
    """
    if not 1 <= circles <= 20 or (size > 1 and not demonstrations):
        raise RecipeError(
            "environment circle_packing: circles are from 1 to 20, and without demonstrations there is one problem",
            fix="Set size: 1.",
        )
    draw = random.Random(f"circle packing {seed}")
    task = f"Pack {circles} circles."
    answer = f"{circles**0.5 / 2:.6f}"  # what a grid has where their number is a square
    info: dict[str, Any] = {
        "environment": "circle_packing", "construction": {"kind": "circle_packing", "circles": circles}, "timeout_s": 1,
    }  # fmt: skip
    for _ in range(size):
        packed = _packed(draw, circles)
        row_info, content = {**info, "program": program(packed)}, task
        if demonstrations:
            place, circle = _changed(draw, packed)
            score = f"{(_value(packed) or 0) / float(answer):.6g}"
            content = TEMPLATE.format(task=task, program=program(packed), score=score)
            row_info["solution"] = f"{SEARCH}        {_line(packed[place])}\n{MIDDLE}        {_line(circle)}\n{REPLACE}"
        yield {
            "prompt": [{"role": "user", "content": content}],
            "answer": answer,
            "verifier": "construction",
            "info": row_info,
        }
