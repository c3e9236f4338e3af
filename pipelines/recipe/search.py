"""The fields of search at inference: how many answers or parts of answers are tried, what scores them, and how the one answer is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from pipelines.contract.fields import ADDRESS, Identifier, Line, Settings, free


class RewardModelScore(Settings):
    """A trained reward model's score of the prompt and the answer so far; of several heads the mean."""

    kind: Literal["reward_model"]
    model: Line
    """A stage of kind reward_model, or a checkpoint for sequence classification with one label by its path, with the policy's tokenizer."""


class JudgeScore(Settings):
    """A grade from 0 to 1 of the answer so far, by a model at an endpoint, or by the searched model itself."""

    kind: Literal["judge"]
    model: Annotated[str | None, Field(min_length=1, max_length=300)] = None
    """The name that the endpoint knows it by; without it the searched model grades its own answers, greedily."""
    url: Annotated[str | None, Field(pattern=ADDRESS)] = None
    api_key_env: Identifier | None = None
    instruction: str = Field("", max_length=8000)
    low: int = Field(1, ge=-1000, le=1000)
    high: int = Field(10, ge=-1000, le=1000)
    max_tokens: int = Field(512, ge=1, le=100_000)
    concurrency: int = free(16, ge=1, le=1024)
    timeout_s: float = free(120.0, gt=0, le=1e6)
    cache: bool = free(True)

    @model_validator(mode="after")
    def _fits(self) -> JudgeScore:
        if self.low >= self.high:
            raise ValueError(f"high ({self.high}) is not above low ({self.low})")
        if self.model is None and (self.url or self.api_key_env):
            raise ValueError("url and api_key_env are those of an endpoint: give its `model`, or leave them out")
        return self


class LikelihoodScore(Settings):
    """The log-probability in nats that the model itself gave what it drew, under the distribution that it was drawn from."""

    kind: Literal["likelihood"]
    per_token: bool = False
    """Its mean over the tokens instead of the sum, which prefers short answers."""


class VerifierScore(Settings):
    """The record's own verifier: an oracle that shows what a perfect score would give, and no result. It reads whole answers only."""

    kind: Literal["verifier"]


def _by_kind(*kinds: str) -> Discriminator:
    def kind(value: Any) -> Any:
        return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)

    return Discriminator(
        kind,
        custom_error_type="kind",
        custom_error_message=f"a section with `kind` is wanted, one of {', '.join(kinds)}",
    )


def _score(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


ScoreSection = Annotated[
    Annotated[RewardModelScore, Tag("reward_model")]
    | Annotated[JudgeScore, Tag("judge")]
    | Annotated[LikelihoodScore, Tag("likelihood")]
    | Annotated[VerifierScore, Tag("verifier")],
    _by_kind("reward_model", "judge", "likelihood", "verifier"),
]
Score = Annotated[
    ScoreSection,
    BeforeValidator(_score, json_schema_input_type=Literal["judge", "likelihood", "verifier"] | ScoreSection),
]


class _Search(Settings):
    """What all strategies have."""

    n: int = Field(8, ge=1, le=4096)
    score: Score
    label: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,39}$")] = None
    """What the names of its columns end with; default: the strategy and its size, such as best8, beam8x2, particles8."""

    @property
    def suffix(self) -> str:
        """What the names of its columns end with."""
        return self.label or self.size

    @property
    def size(self) -> str:
        """The strategy and how many answers it tries."""
        raise NotImplementedError

    @property
    def steps(self) -> bool:
        """Whether parts of answers are scored."""
        return isinstance(self, _Stepwise)


class BestOfN(_Search):
    """`n` answers, of which the one with the highest score is given."""

    kind: Literal["best_of_n"]

    @property
    def size(self) -> str:
        """`best8`."""
        return f"best{self.n}"


class _Stepwise(_Search):
    """What strategies over steps have."""

    separator: Annotated[str | None, Field(min_length=1, max_length=40, pattern=r"[^ ]$")] = "\n\n"
    """A step ends with it, as for `reward: process_model`; its last character is no blank, which tokenizers join to the next word."""
    step_tokens: int | None = Field(None, ge=1, le=100_000)
    """A step also ends after so many tokens."""
    most: int = Field(64, ge=1, le=1000)
    """Steps beyond these belong to the last one."""

    @model_validator(mode="after")
    def _cut_by_something(self) -> _Stepwise:
        if self.separator is None and self.step_tokens is None:
            raise ValueError("separator: without it steps have no end; give `step_tokens`")
        if self.score.kind == "verifier":
            raise ValueError(
                "score: the verifier judges whole answers, and this strategy scores steps. Use best_of_n, or another score"
            )
        return self


class Beam(_Stepwise):
    """`n` paths are continued by a step; the `width` best different ones are kept, each continued n / width times, until all have ended."""

    kind: Literal["beam"]
    width: int = Field(2, ge=1, le=4096)

    @property
    def size(self) -> str:
        """`beam8x2`."""
        return f"beam{self.n}x{self.width}"

    @model_validator(mode="after")
    def _divides(self) -> Beam:
        if self.n % self.width:
            raise ValueError(
                f"n: {self.n} is no multiple of width ({self.width}), and each of these goes on in equally many ways"
            )
        return self


Potential = Literal["difference", "max", "sum", "current"]


class Particles(_Stepwise):
    """`n` answers that are drawn step by step and resampled by a potential of their scores (pipelines/search/particles.py)."""

    kind: Literal["particles"]
    potential: Potential = "difference"
    weight: float = Field(1.0, ge=0, le=1e6)
    """lambda: the answers' distribution is tilted by exp(weight * score)."""
    resample_below: float = Field(0.5, ge=0, le=1)
    """Particles are resampled where their effective number is below this share of them."""
    choose: Literal["best", "sample"] = "best"
    """Of the finished particles the one with the highest score, or one drawn by their weights."""

    @property
    def size(self) -> str:
        """`particles8`."""
        return f"particles{self.n}"


BETTER = "{level}\n\nWrite a better answer to the task than this one, with what is good in it. Write the answer alone."
COMBINED = (
    "{level}\n\nThese are other answers:\n\n{answers}\n\nWrite an answer to the task that is better than all of them, with what is good in "
    "each. Write the answer alone."
)


class Hierarchy(_Search):
    """Whole answers are improved level by level, by `n` climbs a level and one that combines them (pipelines/search/hierarchy.py)."""

    kind: Literal["hierarchy"]
    n: int = Field(3, ge=2, le=4096)
    levels: list[Annotated[str, Field(min_length=1, max_length=4000)]] = Field(min_length=1, max_length=100)
    """What is to be decided at each, from the general to the details: it stands in the request."""
    tries: int = Field(3, ge=1, le=1000)
    """A climb ends after so many answers in a row that are not better."""
    most: int = Field(8, ge=1, le=1000)
    """Or after so many that are."""
    template: str = Field(BETTER, min_length=1, max_length=8000)
    """The request for a better answer, after the question and the answer, with the level in place of {level}."""
    combination: str = Field(COMBINED, min_length=1, max_length=8000)
    """The same where there are other answers to combine, in place of {answers}."""

    @property
    def size(self) -> str:
        """`hierarchy3x2`: climbs a level, and levels."""
        return f"hierarchy{self.n}x{len(self.levels)}"

    @model_validator(mode="after")
    def _asks(self) -> Hierarchy:
        for name, text, places in (
            ("template", self.template, ("{level}",)), ("combination", self.combination, ("{level}", "{answers}"))
        ):  # fmt: skip
            if missing := [place for place in places if place not in text]:
                raise ValueError(f"{name}: it has no {missing[0]}, so nothing would be put into it; add it")
        if self.score.kind == "likelihood":
            raise ValueError(
                "score: answers to different requests cannot be compared by how likely they were; use a judge or a reward model"
            )
        return self


Search = Annotated[
    Annotated[BestOfN, Tag("best_of_n")]
    | Annotated[Beam, Tag("beam")]
    | Annotated[Particles, Tag("particles")]
    | Annotated[Hierarchy, Tag("hierarchy")],
    _by_kind("best_of_n", "beam", "particles", "hierarchy"),
]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


SearchColumns = Annotated[
    list[Search],
    BeforeValidator(_listed, json_schema_input_type=Search | list[Search]),
    Field(min_length=1, max_length=64),
]
"""One strategy, or a list: each makes a column for every evaluated model."""


def distinct(searches: Sequence[Search]) -> None:
    """Columns need different names.

    Raises:
        ValueError: two strategies would have the same.
    """
    names = [each.suffix for each in searches]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"search: two strategies are called {twice}, and each makes a column. Give them a `label`")
