"""The field `select` of a source that reads a sample stage: which completions become records, and as what."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipelines.contract import template
from pipelines.contract.fields import Line, Settings

OF_KIND = {
    "min_score": ("best",),
    "min_share": ("majority",),
    "pair": ("pairs",),
    "against": ("pairs",),
    "by": ("best", "pairs"),
    "factors": ("pairs",),
    "margin": ("pairs", "segments"),
    "truncate": ("best", "correct", "shortest_correct", "majority"),
    "lengths": ("correct_by_difficulty",),
    "efforts": ("best", "correct", "shortest_correct", "correct_by_difficulty"),
    "per_problem": (
        "best",
        "correct",
        "shortest_correct",
        "correct_by_difficulty",
        "pairs",
        "preferred",
        "segments",
        "steps",
        "graded",
        "compared",
        "checked",
    ),
    "length": ("segments",),
    "importance": ("segments", "preferred"),
    "prefer": ("segments",),
    "discount": ("segments", "steps"),
    "grades": ("graded", "compared"),
    "noise": ("graded", "compared", "checked"),
    "instruction": ("graded", "compared", "checked"),
    "template": ("graded", "compared", "checked"),
    "nearest": ("pass_rate",),
    "problems": ("pass_rate",),
    "marks": ("prompts",),
    "rouge": ("prompts",),
    "words": ("prompts",),
    "keywords": ("prompts",),
}
"""Fields that only some selections read."""


class Factor(Settings):
    """A ranked factor of a preference."""

    name: Line
    """score, correct, length, brevity, or one of the completions' components, such as reward_model."""
    margin: float = Field(0.0, ge=0, le=1e6)
    """Standard deviations (over the problem's completions) by which the values must differ; otherwise the next factor decides."""


SelectionKind = Literal[
    "best", "correct", "shortest_correct", "correct_by_difficulty", "majority", "pairs", "preferred", "segments", "steps",
    "pass_rate", "graded", "compared", "checked", "prompts",
]  # fmt: skip


def _factor(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Selection(Settings):
    """Records out of the scored completions of a problem; repeated texts of a problem count once."""

    kind: SelectionKind
    """best: highest score first. correct: in the order in which they were drawn. shortest_correct: fewest tokens first.
    correct_by_difficulty: those first whose length is nearest to what the share of incorrect completions asks for (ARES). majority: the
    most frequent answer as the record's answer, with its first completion. pairs: `info.chosen` and `info.rejected`. pass_rate: the
    problem itself. preferred: two completions or whole episodes of which a judge said which is better (a sample stage with
    `comparisons`). segments: two parts of its episodes, which may begin in different states (a sample stage with `episodes`). steps:
    completions with a label for each step (a sample stage with `step_labels`), or turns of its episodes with their mean return.
    prompts: the completions as new problems, those that are unlike all others (a sample stage with `new_prompts`). graded, compared: a
    judge's question about a completion, or about two; answer and solution are the grades that their scores mean. checked: a judge's
    question about all criteria of the problem's `info.rubric` at once; answer and solution are the verdicts on each of them that the
    problem's verifier gave in components whose names end in /0, /1, ..., as `instructions` does (RIFL)."""
    low: float | None = Field(None, ge=0, le=1)
    high: float | None = Field(None, ge=0, le=1)
    """Only problems with low < share of correct completions < high."""
    nearest: float | None = Field(None, ge=0, le=1)
    """pass_rate: the `problems` whose share of correct completions is nearest to this; of equally near ones those with fewer cut
    completions, then with shorter ones."""
    problems: int | None = Field(None, ge=1, le=1_000_000)
    """How many of them."""
    per_problem: int = Field(1, ge=1, le=100_000)
    """Most records a problem."""
    min_score: float | None = None
    """best: completions with a lower score are no candidates."""
    min_share: float = Field(0.0, ge=0, le=1)
    """majority: least share of the completions that must have the answer."""
    by: Line = "score"
    """What the best are the highest of: the score, or as a factor's `name`."""
    pair: Literal["extremes", "random", "ranked", "demonstration"] = "extremes"
    """extremes: the best against the worst, the second best against the second worst, ...; random: a correct against an incorrect
    completion, drawn by the source's `seed`; ranked: two drawn ones of which `factors` say which is better (HERON); demonstration: the
    record's solution, or its answer, against a drawn one with another text (DIP-RL)."""
    against: Literal["all", "correct", "incorrect"] = "all"
    """demonstration: which completions are the other side. Beside correct ones the solution has only what the verifier does not ask for."""
    factors: list[Annotated[Factor, BeforeValidator(_factor, json_schema_input_type=str | Factor)]] = Field(
        [], max_length=20
    )
    """ranked: the most important first."""
    margin: float = Field(0.0, ge=0)
    """pairs, segments: the scores, or returns or regrets, must differ by more than this."""
    length: int = Field(3, ge=1, le=1000)
    """segments: turns of a part; one that an episode ends in may have fewer."""
    prefer: Literal["regret", "partial_return"] = "regret"
    """segments: the part with less regret (what the best that is known from its states would have got beyond it), or with the larger sum of
    rewards."""
    discount: float = Field(1.0, gt=0, le=1)
    """segments, steps: of the rewards, by turns."""
    importance: Literal["changes"] | None = None
    """segments, preferred: what the turns of a part count for `loss: hindsight_prior`. changes: alike those that changed the state, and
    nothing those that left it as it was; default: nothing is said, all alike."""
    truncate: float | None = Field(None, gt=0, lt=1)
    """Keep this share of a completion's characters, cut back to white space where there is some: a prefix."""

    lengths: tuple[int, int] | None = None
    """correct_by_difficulty: tokens for a problem that is always solved, and for one that is almost never solved; default: those of its own
    shortest and longest correct completion."""
    efforts: dict[Line, Annotated[float, Field(gt=0, le=1)]] = Field({}, max_length=20)
    """A record for each of these, whose system message asks for that effort and whose solution keeps this share of the characters
    between <think> and </think>, cut back to white space (ThinkDial); the answer after them stays whole."""

    grades: tuple[int, int] = (1, 10)
    """graded, compared: the lowest and the highest grade, for scores of 0 and 1; the judge's `low` and `high`."""
    noise: float = Field(0.0, ge=0, le=1)
    """graded, compared, checked: share of the solutions, of checked of the verdicts, that say the opposite, drawn by the source's `seed`;
    the answer stays as it is."""
    instruction: str = Field("", max_length=8000)
    """graded, compared, checked: the judge's."""
    template: Annotated[str | None, Field(max_length=8000)] = None
    """graded, compared, checked: the judge's."""

    marks: tuple[Line, Line] | None = None
    """prompts: what a new prompt stands between in its completion; default: the whole completion after its reasoning."""
    rouge: float = Field(0.7, gt=0, le=1)
    """prompts: one whose ROUGE-L with a prompt of the split, or with a new one before it, is as high or higher is left out."""
    words: tuple[int, int] = (4, 150)
    """prompts: the fewest and the most words of one that stays."""
    keywords: list[Line] = Field([], max_length=1000)
    """prompts: one that holds any of these words is left out, such as image or file for a model that can see neither."""

    @model_validator(mode="after")
    def _fields(self) -> Selection:
        for name, wanted in OF_KIND.items():
            if self.kind not in wanted and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is read by {', '.join(wanted)}, not by {self.kind}; leave it out")
        if (self.pair == "ranked") != bool(self.factors):
            raise ValueError("pair: ranked needs `factors`, the most important first, and nothing else takes them")
        if self.against != "all" and self.pair != "demonstration":
            raise ValueError("against is read by pair: demonstration; leave it out")
        if self.pair == "demonstration" and self.margin:
            raise ValueError("margin compares scores, and a demonstration has none; leave it out")
        if self.pair != "extremes" and self.by != "score":
            raise ValueError("by is read by best, and by pairs of extremes; leave it out")
        if not -1000 <= self.grades[0] < self.grades[1] <= 1000:
            raise ValueError("grades are the lowest and the highest, from -1000 to 1000")
        answers = {"graded": ("answer",), "checked": ("answer", "criteria")}.get(self.kind, ("first", "second"))
        if fault := template.problem_with(self.template, answers):
            raise ValueError(f"template: {fault}")
        if self.efforts and self.truncate is not None:
            raise ValueError(
                "truncate: with `efforts` each record keeps that effort's share of the reasoning; leave one of the two out"
            )
        if (self.nearest is None) != (self.problems is None):
            raise ValueError("nearest and problems go together: the problems nearest to a pass rate, and how many")
        if not 1 <= self.words[0] <= self.words[1] <= 10**6:
            raise ValueError("words are the fewest and the most of a prompt, from 1")
        if self.lengths is not None and not 0 <= self.lengths[0] <= self.lengths[1] <= 10**9:
            raise ValueError("lengths are tokens, the fewest first")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) must be under high ({self.high:g})")
        return self
