"""Pairs of completions get a verdict by a rubric: so much for the better one, so much off for the other.

Presets: auto_rubric.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Stop, Trajectory, by_group
from pipelines.judges.pairwise import PairwiseJudge
from pipelines.rlvr.scoring import verify


@method(
    paper="2605.08354",
    title="Auto-Rubric as Reward: From Implicit Preferences to Explicit Multimodal Generative Criteria (ARR, RPO)",
    checked="paper (its text; it states neither weight, ours are 1 and 1)",
)
class auto_rubric(Reward):
    """`win` for the better and `-lose` for the worse of two completions of a problem, for `advantage: as_is`.

    The completions of a group are paired in the order of sampling, 0 with 1, 2 with 3; use `group_size: 2`. `judge` is a language model
    behind an endpoint (`{model, url, instruction, ...}`, the fields of `reward: judge`), which compares each pair by `criteria` in both
    orders; where the two orders disagree, tie or cannot be parsed, both rows are unscored, as is one without a partner. Without a judge the
    verifier's scores are compared. `whetstone rubric` drafts the criteria from preference pairs. Components: `rubric_undecided`.
    """

    def __init__(
        self,
        *,
        judge: dict[str, Any] | None = None,
        criteria: Annotated[list[str], Field(max_length=1000)] | None = None,
        win: Annotated[float, Field(ge=0, le=1000)] = 1.0,
        lose: Annotated[float, Field(ge=0, le=1000)] = 1.0,
    ) -> None:
        self.judge = None if judge is None else PairwiseJudge(judge, "rlvr.reward.judge")
        self.criteria, self.win, self.lose = list(criteria or []), win, lose

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        finished = by_group(row for row in rows if row.stop != Stop.ERROR)
        pairs = [(own[i], own[i + 1]) for own in finished.values() for i in range(0, len(own) - 1, 2)]
        verdicts = self._verdicts(pairs, problems)
        for row in rows:
            row.score = None
        for (first, second), better in zip(pairs, verdicts, strict=True):
            for row, won in ((first, better), (second, None if better is None else not better)):
                row.components = row.components | {"rubric_undecided": float(won is None)}
                row.score = None if won is None else self.win if won else -self.lose

    def _verdicts(
        self, pairs: list[tuple[Trajectory, Trajectory]], problems: Mapping[str, Problem]
    ) -> list[bool | None]:
        """Whether the first of each pair is the better one."""
        if self.judge is not None:
            asked = [(first.asked(problems), first.text, second.text) for first, second in pairs]
            return self.judge.verdicts(asked, self.criteria)
        verdicts: list[bool | None] = []
        for first, second in pairs:
            tied = first.score is None or second.score is None or first.score == second.score
            verdicts.append(None if tied else float(first.score or 0) > float(second.score or 0))
        return verdicts
