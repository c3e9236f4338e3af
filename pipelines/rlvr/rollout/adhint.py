"""Unhinted rollouts first; the more of them fail, the longer the hint of those that follow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.data.records import Role, Trajectory, by_group
from pipelines.rlvr.rollout._answers import answers, mean_score, solution_tokens

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


@method(
    paper="2512.13095",
    title="ADHint: Adaptive Hints with Difficulty Priors for Reinforcement Learning",
    checked="reconstructed (the ratio is the paper's, its bounds and the share of hinted rows are ours)",
    reduces_to="share 0 is single_turn",
    makes=("teacher_forced",),
)
class adhint(Rollout):
    """A `share` of each group continues from the first share w of the solution's tokens; w grows with the unhinted rows' failures.

        D = 1 - mean score of the unhinted rows;   w = clip((high - low) D + low + noise, low, high)

    A problem that every unhinted row solves gets no hint. Hint tokens are teacher-forced: `credit: adhint` sets their advantages.
    """

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
        """Share of the solution that the hint shows.

        >>> round(adhint().ratio(0.75), 6), adhint().ratio(1.0, 0.3)
        (0.7, 0.9)
        """
        return min(self.high, max(self.low, (self.high - self.low) * difficulty + self.low + noise))

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems; a group's hinted rows are its last."""
        unhinted = [
            replace(request, rollouts=request.rollouts - round(self.share * request.rollouts)) for request in requests
        ]
        unhinted_rows = answers(unhinted, context)
        groups = by_group(unhinted_rows)
        noise = torch.randn(len(requests), generator=context.generator, device=context.generator.device) * self.noise
        hinted_requests = []
        for request, unhinted_request, jitter in zip(requests, unhinted, noise.tolist(), strict=True):
            mean_accuracy = mean_score(request, groups.get(request.group, []))
            difficulty = 1.0 if mean_accuracy is None else 1 - mean_accuracy
            solution = solution_tokens(request, context)
            hint_length = 0
            if difficulty > 0:
                hint_length = min(round(self.ratio(difficulty, jitter) * len(solution)), len(solution) - 1)
            hint = [*request.hint, *solution[: max(0, hint_length)]]
            hinted_requests.append(replace(request, rollouts=request.rollouts - unhinted_request.rollouts, hint=hint))
        rows = unhinted_rows + answers(hinted_requests, context, Role.TEACHER_FORCED)
        return sorted(rows, key=lambda row: row.group)
