"""A language model that ticks off a rubric, criterion by criterion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, ValidationError

from pipelines.base.errors import RecipeError
from pipelines.data.records import Problem
from pipelines.judges import questions
from pipelines.judges.asker import Endpoint, read_settings


class Settings(Endpoint):
    """How it is asked; the fields of `reward: judge` with `form: rubric` mean the same there."""

    criteria: list[str | dict[str, Any]] = Field([], max_length=1000)
    """Of records without an `info.rubric`."""


class RubricJudge:
    """Yes or no for each criterion of an answer.

    Args:
        settings: as in a recipe.
        field: of the recipe, for errors.

    Raises:
        RecipeError: a setting that it does not take, or a criterion that is none.
    """

    def __init__(self, settings: dict[str, Any], field: str) -> None:
        self.settings = read_settings(Settings, settings, field)
        try:
            self.criteria = questions.plain(self.settings.criteria)
        except ValidationError as error:
            raise RecipeError(f"{field}.criteria", f"{error.errors()[0]['msg']}.") from None
        self.asker = self.settings.asker(field)

    def rubric(self, problem: Problem) -> list[questions.Criterion]:
        """Of a problem.

        Raises:
            DataError: it has none, and the recipe gives none.
        """
        return questions.rubric_of(problem, self.criteria)

    def verdicts(self, answers: Sequence[tuple[Problem, str]]) -> list[list[bool] | None]:
        """Which criteria of its problem's rubric each answer meets; None where a reply cannot be read or did not come.

        Raises:
            UserError: the endpoint answers nothing, or refuses us.
        """
        shown: dict[str, Any] = {"instruction": self.settings.instruction, "reference": self.settings.reference}
        asked = [
            [questions.criterion(problem, text, c.criterion, **shown) for c in self.rubric(problem)]
            for problem, text in answers
        ]
        replies = iter(self.asker.ask([question for group in asked for question in group]))
        verdicts: list[list[bool] | None] = []
        for group in asked:
            own = [questions.read_verdict(next(replies).text) for _ in group]
            known = [verdict for verdict in own if verdict is not None]
            verdicts.append(known if len(known) == len(own) else None)
        return verdicts
