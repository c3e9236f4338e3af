"""Short word problems from templates, some of which need arithmetic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.base.errors import RecipeError, did_you_mean

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Finn", "Greta", "Hugo", "Ida", "Jonas")
THINGS = ("pens", "cups", "nuts", "eggs", "books", "coins", "shells", "stamps")
ARITHMETIC = ("product", "sum", "difference")
PLAIN = ("comparison", "lookup")


@dataclass(frozen=True)
class Question:
    """A problem, its answer, and an expression that an expert who always calculates would type."""

    kind: str
    text: str
    answer: str
    expression: str


class Drawer:
    """Questions in an order that depends on the seed and the settings that are not `kinds`.

    Raises:
        RecipeError: a kind is unknown.
    """

    def __init__(self, seed: int, plain_share: float, digits: tuple[int, int], kinds: Sequence[str] | None) -> None:
        for kind in kinds or ():
            if kind not in (*ARITHMETIC, *PLAIN):
                raise RecipeError(f"environment tools: no kind {kind!r}", fix=did_you_mean(kind, [*ARITHMETIC, *PLAIN]))
        self.draw = random.Random(f"word problems {seed}")
        self.choices = random.Random(f"word problems {seed} choices")
        self.plain_share, self.digits, self.kinds = plain_share, digits, kinds

    def chance(self, share: float) -> bool:
        """Whether a thing of this chance happens; the questions do not depend on it."""
        return self.choices.random() < share

    def next(self) -> Question:
        """The next question of the wanted kinds."""
        while True:
            plain = self.draw.random() < self.plain_share
            kind = self.draw.choice(PLAIN if plain else ARITHMETIC)
            question = self._question(kind)
            if not self.kinds or kind in self.kinds:
                return question

    def _number(self, digits: int) -> int:
        return self.draw.randrange(10 ** (digits - 1) + 1, 10**digits)

    def _question(self, kind: str) -> Question:
        first, second = self.draw.sample(NAMES, 2)
        thing = self.draw.choice(THINGS)
        if kind == "product":
            a, b = (self._number(n) for n in self.digits)
            text = f"{first} has {a} boxes of {b} {thing}. How many?"
            return Question(kind, text, str(a * b), f"{a} * {b}")
        a, b = (self._number(n + 1) for n in self.digits)
        if a == b:
            return self._question(kind)
        if kind == "sum":
            text = f"{first} has {a} {thing}, {second} {b}. Together?"
            return Question(kind, text, str(a + b), f"{a} + {b}")
        if kind == "difference":
            a, b = max(a, b), min(a, b)
            text = f"{first} had {a} {thing}, gave {second} {b}. Left?"
            return Question(kind, text, str(a - b), f"{a} - {b}")
        told = f"{first} has {a} {thing}, {second} {b}."
        if kind == "comparison":
            return Question(kind, f"{told} Who has more?", first if a > b else second, f"{a} - {b}")
        asked, answer = (first, a) if self.draw.random() < 0.5 else (second, b)
        return Question(kind, f"{told} How many has {asked}?", str(answer), f"{a} - {b}")
