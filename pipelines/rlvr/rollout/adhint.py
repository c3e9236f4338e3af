"""Plain rollouts first; the harder they went, the longer the hint of those that follow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.data.records import Role, Trajectory, by_group
from pipelines.rlvr.rollout._answers import answers, mean_score, solution_tokens

if TYPE_CHECKING:
    from pipelines.rlvr.train import Asked, Context


@method(
    paper="2512.13095",
    title="ADHint: Adaptive Hints with Difficulty Priors for Reinforcement Learning",
    checked="reconstructed (the ratio is the paper's, its bounds and the share of hinted rows are ours)",
    reduces_to="share 0 is single_turn",
)
class adhint:
    """A `share` of each group answers behind the first w of the solution's tokens, w growing with the plain rows' failures.

        D = 1 - mean score of the plain rows;   w = clip((high - low) D + low + noise, low, high)

    A problem that no plain row fails gets no hint. Hint tokens are given: `credit: adhint` says what they learn.
    """

    makes = ("teacher_forced",)

    def __init__(
        self,
        *,
        share: Annotated[float, Field(ge=0, lt=1)] = 0.5,
        low: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        high: Annotated[float, Field(gt=0, lt=1)] = 0.9,
        noise: Annotated[float, Field(ge=0)] = 0.05,
    ) -> None:
        self.share, self.low, self.high, self.noise = share, low, high, noise

    def ratio(self, difficulty: float, noise: float = 0.0) -> float:
        """Share of the solution that is told.

        >>> round(adhint().ratio(0.75), 6), adhint().ratio(1.0, 0.3)
        (0.7, 0.9)
        """
        return min(self.high, max(self.low, (self.high - self.low) * difficulty + self.low + noise))

    def run(self, asked: list[Asked], context: Context) -> list[Trajectory]:
        """All rollouts of the problems; a group's hinted rows are its last."""
        first = [replace(one, rollouts=one.rollouts - round(self.share * one.rollouts)) for one in asked]
        plain = answers(first, context)
        judged = by_group(plain)
        noise = torch.randn(len(asked), generator=context.generator, device=context.generator.device) * self.noise
        later = []
        for one, begun, more in zip(asked, first, noise.tolist(), strict=True):
            mean = mean_score(one, judged.get(one.group, []))
            difficulty = 1.0 if mean is None else 1 - mean
            solution = solution_tokens(one, context)
            size = 0 if difficulty <= 0 else min(round(self.ratio(difficulty, more) * len(solution)), len(solution) - 1)
            later.append(
                replace(one, rollouts=one.rollouts - begun.rollouts, hint=[*one.hint, *solution[: max(0, size)]])
            )
        rows = plain + answers(later, context, Role.TEACHER_FORCED)
        return sorted(rows, key=lambda row: row.group)
