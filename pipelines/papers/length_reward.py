"""Nothing but the length of a completion: the baseline that a reward which pays for length is held against.

No preset uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.rlvr.scoring import verify


@method(
    paper="2310.03716",
    title="A Long Way to Go: Investigating Length Correlations in RLHF (length-only PPO)",
    checked="official code (read)",
)
class length(Reward):
    """1 - |n / target - 1| for a completion of n sampled tokens: 1 at the target, 0 at none and at twice as many, negative beyond.

    The record's verifier still sets `correct`, but not the score: `reward/correct` beside `reward/mean` shows how much of another reward's
    benefit comes from length alone. The component `verifier` is its score.

    >>> length(target=50).paid(50), length(target=50).paid(25), length(target=50).paid(150)
    (1.0, 0.5, -1.0)
    """

    def __init__(self, *, target: Annotated[int, Field(ge=1, le=1_000_000)]) -> None:
        self.target = target

    def paid(self, tokens: int) -> float:
        """What so many tokens are worth."""
        return 1.0 - abs(tokens / self.target - 1.0)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score and components in place."""
        verify(rows, problems)
        for row in rows:
            if row.stop != Stop.ERROR:
                row.score = self.paid(row.sampled_count)
                row.components = row.components | {"length": row.score}
