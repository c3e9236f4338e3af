"""A language model that compares two answers, asked in both orders."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from pipelines.contract.fields import Strict
from pipelines.data.records import Problem
from pipelines.errors import RecipeError
from pipelines.judges import questions
from pipelines.judges.asker import Asker


class Unreadable(Exception):
    """A judge whose answer cannot be read."""


class Settings(Strict):
    """How a pairwise judge is asked; the fields of `reward: judge` mean the same there."""

    model: str = Field(min_length=1, max_length=300)
    url: str | None = Field(None, pattern=r"^https?://[^\s/]")
    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_]\w*$")
    instruction: str = Field("", max_length=8000)
    """What to compare by, in words: the levels of a rubric, say."""
    reference: bool = False
    low: int = Field(1, ge=-1000, le=1000)
    high: int = Field(10, ge=-1000, le=1000)
    temperature: float = Field(0.0, ge=0, le=10)
    max_tokens: int = Field(512, ge=1, le=100_000)
    concurrency: int = Field(16, ge=1, le=1024)
    timeout_s: float = Field(120.0, gt=0, le=1e6)
    cache: bool = True


class PairwiseJudge:
    """Points for each of two answers, the means over both orders, so that a preference for a place cancels.

    Args:
        settings: as in a recipe.
        field: of the recipe, for errors.

    Raises:
        RecipeError: a setting that it does not take, or a range without width.
    """

    def __init__(self, settings: dict[str, Any], field: str) -> None:
        try:
            self.settings = Settings.model_validate(settings)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, (field, *first["loc"])))
            raise RecipeError(f"{where}: {first['msg']}.") from None
        questions.check_range(self.settings.low, self.settings.high, field)
        asked = self.settings.model_dump(exclude={"instruction", "reference", "low", "high"})
        self.asker = Asker(path=None, field=field, **asked)

    def compare(self, problem: Problem, first: str, second: str) -> tuple[float, float, bool]:
        """(points of the first, points of the second, whether the two orders prefer different answers).

        Raises:
            Unreadable: a reply holds no two numbers in the range, or none came.
            UserError: the endpoint cannot be asked.
        """
        s = self.settings
        shown: dict[str, Any] = {
            "low": s.low, "high": s.high, "instruction": s.instruction, "reference": s.reference,
        }  # fmt: skip
        asked = [questions.comparison(problem, *pair, **shown) for pair in ((first, second), (second, first))]
        replies = self.asker.ask(asked)
        forward, backward = (questions.read_comparison(reply.text, s.low, s.high) for reply in replies)
        if forward is None or backward is None:
            raise Unreadable("a comparison without two numbers in the range")
        (a, b), (b_first, a_second) = forward, backward
        flipped = (a - b) * (a_second - b_first) < 0
        return (a + a_second) / 2, (b + b_first) / 2, flipped
