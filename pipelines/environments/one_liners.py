"""Python one-liners over a list of integers, described in words and checked by hidden tests.

    keep the even ones, add 3 to each, sum   ->   f = lambda x: sum(v + 3 for v in x if v % 2 == 0)

The expert of the demonstrations errs in a share of them (`errors`): its program then does something else in one of its three parts.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from pipelines.environments._answered import Part, World, belongs

__all__ = ["World", "problems"]

CASES = 6
"""Hidden tests of a problem."""
VERIFIERS = ("python",)


class Operation(NamedTuple):
    """A part of a program: how it is asked for, how it is written, and what it does."""

    words: tuple[str, ...]
    code: str
    of: Callable[[Any], Any]
    family: str


def _filters() -> list[Operation]:
    operations = [
        Operation(("the even ones", "even numbers"), "v % 2 == 0", lambda v: v % 2 == 0, "parity"),
        Operation(("the odd ones", "odd numbers"), "v % 2 == 1", lambda v: v % 2 == 1, "parity"),
    ]
    for n in range(10):
        operations += [
            Operation((f"those over {n}", f"numbers above {n}"), f"v > {n}", partial(operator.lt, n), "bound"),
            Operation((f"those from {n} up", f"numbers at least {n}"), f"v >= {n}", partial(operator.le, n), "bound"),
            Operation((f"those under {n}", f"numbers below {n}"), f"v < {n}", partial(operator.gt, n), "bound"),
        ]
    return operations


def _maps() -> list[Operation]:
    operations = [
        Operation(("square each", "take squares"), "v * v", lambda v: v * v, "power"),
        Operation(("negate each", "flip the sign"), "-v", lambda v: -v, "power"),
    ]
    for n in range(2, 10):
        operations += [
            Operation((f"add {n} to each", f"raise by {n}"), f"v + {n}", partial(operator.add, n), "shift"),
            Operation((f"take {n} from each", f"lower by {n}"), f"v - {n}", partial(operator.add, -n), "shift"),
            Operation((f"times {n}", f"multiply by {n}"), f"v * {n}", partial(operator.mul, n), "scale"),
        ]
    return operations


REDUCTIONS = (
    Operation(("sum", "add up"), "sum({})", sum, "number"),
    Operation(("largest", "maximum"), "max({}, default=0)", lambda vs: max(vs, default=0), "number"),
    Operation(("smallest", "minimum"), "min({}, default=0)", lambda vs: min(vs, default=0), "number"),
    Operation(("sorted", "in order"), "sorted({})", sorted, "list"),
    Operation(("sorted down", "in falling order"), "sorted({}, reverse=True)", lambda vs: sorted(vs)[::-1], "list"),
    Operation(("as a list", "listed"), "list({})", list, "list"),
)
PARTS = (tuple(_filters()), tuple(_maps()), REDUCTIONS)


class Program(NamedTuple):
    """A filter, a map and a reduction."""

    choose: Operation
    change: Operation
    end: Operation

    def source(self) -> str:
        """In Python, the whole line."""
        generator = f"({self.change.code} for v in x if {self.choose.code})"
        bare = "{})" in self.end.code
        return f"f = lambda x: {self.end.code.format(generator[1:-1] if bare else generator)}"

    def run(self, values: list[int]) -> Any:
        """What it returns."""
        return self.end.of([self.change.of(v) for v in values if self.choose.of(v)])


def _erring(program: Program, draw: random.Random) -> Program:
    """The program with one part replaced by another of its family."""
    position = draw.randrange(len(PARTS))
    others = [o for o in PARTS[position] if o.family == program[position].family and o is not program[position]]
    parts = list(program)
    parts[position] = draw.choice(others)
    return Program(*parts)


def _inputs(draw: random.Random) -> list[list[int]]:
    """Lists that tell programs apart: one of every number near the bounds, an empty one, and random ones."""
    every = list(range(-2, 12))
    draw.shuffle(every)
    return [every, [], *([draw.randint(-9, 20) for _ in range(draw.randint(3, 8))] for _ in range(CASES - 2))]


def problems(
    size: int, seed: int, *, part: Part = "train", demonstrations: bool = False, errors: float = 0.0
) -> Iterator[dict[str, Any]]:
    """Descriptions with hidden tests; a program is of the part that its own text falls into.

    Args:
        size: rows.
        seed: of the problems.
        part: `train` or `test`.
        demonstrations: with an expert's program as the solution, for SFT.
        errors: share of the expert's programs that do something else.
    """
    draw = random.Random(f"one-liners {seed}")
    choices = random.Random(f"one-liners {seed} choices")
    yielded = 0
    while yielded < size:
        program = Program(*(draw.choice(operations) for operations in PARTS))
        choose, change, end = (draw.choice(operation.words) for operation in program)
        inputs = _inputs(draw)
        if not belongs(program.source(), part):
            continue
        cases = [{"args": [values], "expected": program.run(values)} for values in inputs]
        info: dict[str, Any] = {"environment": "one_liners", "entry_point": "f", "timeout_s": 1, "cases": cases}
        if demonstrations:
            shown = program
            if choices.random() < errors:
                shown = _erring(program, choices)
            info["solution"] = shown.source()
        prompt = [{"role": "user", "content": f"keep {choose}, {change}, {end}"}]
        yield {"prompt": prompt, "answer": program.source(), "verifier": "python", "info": info}
        yielded += 1
