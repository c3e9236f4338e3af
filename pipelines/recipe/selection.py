"""The field `select` of a source that reads a sample stage: which completions become records, and as what."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipelines.contract.fields import Settings

OF_KIND = {
    "min_score": ("best",),
    "min_share": ("majority",),
    "pair": ("pairs",),
    "margin": ("pairs",),
    "truncate": ("best", "correct", "shortest_correct", "majority"),
    "per_problem": ("best", "correct", "shortest_correct", "pairs"),
}
"""Fields that only some selections read."""


class Selection(Settings):
    """Records out of the scored completions of a problem; repeated texts of a problem count once."""

    kind: Literal["best", "correct", "shortest_correct", "majority", "pairs", "pass_rate"]
    """best: highest score first. correct: in the order of the draws. shortest_correct: fewest tokens first. majority: the most frequent
    answer as the record's answer, with its first completion. pairs: `info.chosen` and `info.rejected`. pass_rate: the problem itself."""
    low: float | None = Field(None, ge=0, le=1)
    high: float | None = Field(None, ge=0, le=1)
    """Only problems with low < share of correct completions < high."""
    per_problem: int = Field(1, ge=1, le=100_000)
    """Most records a problem."""
    min_score: float | None = None
    """best: completions with a lower score are no candidates."""
    min_share: float = Field(0.0, ge=0, le=1)
    """majority: least share of the completions that must have the answer."""
    pair: Literal["extremes", "random"] = "extremes"
    """extremes: the best against the worst, the second best against the second worst, ...; random: a correct against an incorrect
    completion, drawn by the source's `seed`."""
    margin: float = Field(0.0, ge=0)
    """pairs: the scores must differ by more than this."""
    truncate: float | None = Field(None, gt=0, lt=1)
    """Keep this share of a completion's characters, cut back to white space where there is some: a prefix."""

    @model_validator(mode="after")
    def _fields(self) -> Selection:
        for name, wanted in OF_KIND.items():
            if self.kind not in wanted and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is read by {', '.join(wanted)}, not by {self.kind}; leave it out")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) must be under high ({self.high:g})")
        return self
