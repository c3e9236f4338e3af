"""A language model that compares two answers, asked in both orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract import template
from pipelines.data.records import Problem
from pipelines.judges import questions
from pipelines.judges.asker import Endpoint, read_settings


class Unreadable(Exception):
    """A judge whose answer cannot be read."""


class Settings(Endpoint):
    """How a pairwise judge is asked; `instruction`: what to compare by, the levels of a rubric, say."""

    low: int = Field(1, ge=-1000, le=1000)
    high: int = Field(10, ge=-1000, le=1000)
    template: str | None = Field(None, max_length=8000)
    """The whole question in words of one's own, with `{first}` and `{second}`."""


class PairwiseJudge:
    """Points for each of two answers, the means over both orders, so that a preference for a place cancels.

    Args:
        settings: as in a recipe.
        field: of the recipe, for errors.

    Raises:
        RecipeError: a setting that it does not take, or a range without width.
    """

    def __init__(self, settings: dict[str, Any], field: str) -> None:
        self.settings = read_settings(Settings, settings, field)
        questions.check_range(self.settings.low, self.settings.high, field)
        if fault := template.problem_with(self.settings.template, ("first", "second")):
            raise RecipeError(f"{field}.template", fault)
        self.asker = self.settings.asker(field)

    def compare(self, problem: Problem, first: str, second: str) -> tuple[float, float, bool]:
        """(points of the first, points of the second, whether the two orders prefer different answers).

        Raises:
            Unreadable: a reply holds no two numbers in the range, or none came.
            UserError: the endpoint cannot be asked.
        """
        [[forward, backward]] = self._points([(problem, first, second)], "")
        if forward is None or backward is None:
            raise Unreadable("a comparison without two numbers in the range")
        (a, b), (b_first, a_second) = forward, backward
        flipped = (a - b) * (a_second - b_first) < 0
        return (a + a_second) / 2, (b + b_first) / 2, flipped

    def verdicts(self, pairs: Sequence[tuple[Problem, str, str]], criteria: Sequence[str] = ()) -> list[bool | None]:
        """Whether the first answer of each pair is the better one; None where the two orders do not agree on one, or cannot be read.

        Args:
            criteria: to compare by, beside the settings' instruction.

        Raises:
            UserError: the endpoint cannot be asked.
        """
        verdicts: list[bool | None] = []
        for forward, backward in self._points(pairs, questions.by_criteria(criteria)):
            if forward is None or backward is None:
                verdicts.append(None)
                continue
            ahead = (forward[0] - forward[1], backward[1] - backward[0])
            verdicts.append(ahead[0] > 0 if ahead[0] * ahead[1] > 0 else None)
        return verdicts

    def _points(
        self, pairs: Sequence[tuple[Problem, str, str]], criteria: str
    ) -> list[list[tuple[float, float] | None]]:
        """Of each pair, the points of both places in both orders."""
        s = self.settings
        shown: dict[str, Any] = {
            "low": s.low, "high": s.high, "instruction": f"{criteria}{s.instruction}", "reference": s.reference,
            "template": s.template,
        }  # fmt: skip
        asked = [
            questions.comparison(problem, *order, **shown)
            for problem, first, second in pairs
            for order in ((first, second), (second, first))
        ]
        points = [questions.read_comparison(reply.text, s.low, s.high) for reply in self.asker.ask(asked)]
        return [points[i : i + 2] for i in range(0, len(points), 2)]
