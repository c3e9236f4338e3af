"""ADHint: Adaptive Hints with Difficulty Priors for Reinforcement Learning.

arXiv 2512.13095. Presets: adhint. Parts: adhint (rollout), adhint (advantage), adhint (credit).

Unhinted rollouts first; the more of them fail, the longer the hint of those that follow.

Hinted and unhinted rollouts of a problem normalised separately, and weighted by how often each kind failed.

Hint tokens whose entropy is near the continuation's are trained where the row's advantage is positive.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Rollout
from pipelines.data.records import Role, Trajectory, by_group
from pipelines.rlvr.common.answers import answers, mean_score, solution_tokens
from pipelines.rlvr.ops import group_mean, group_size, group_std, row_mean

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
        hinted_requests = []
        for request, unhinted_request in zip(requests, unhinted, strict=True):
            jitter = self.noise * float(torch.randn((), generator=context.streams.generator(request.group)))
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


@method(
    paper="2512.13095",
    title="ADHint: Adaptive Hints with Difficulty Priors for Reinforcement Learning",
    checked="reconstructed (the direction of each rule is the paper's, the weights are ours)",
    couples="group",
    reduces_to="a group without hinted rows is grpo with the population deviation",
)
def adhint_advantage(
    reward: PerRow,
    correct: PerRow,
    group: PerRow,
    scored: PerRow,
    teacher_forced: PerToken,
    *,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """Each kind's rewards are normalised separately; then correct rows without a hint and incorrect rows with one get more weight.

        s = D / (D + D_hint), D the share of incorrect rows; unhinted: 2 s above 0, 2 (1 - s) below; hinted the other way round

    >>> import torch
    >>> r = torch.tensor([0.0, 0, 1, 0, 1, 1, 0, 1]); hinted = (torch.arange(8) > 3)[:, None]
    >>> A = adhint_advantage(r, r, torch.zeros(8).long(), torch.ones(8).bool(), hinted)
    >>> [round(v, 4) for v in A[1:3].tolist()], [round(v, 4) for v in A[5:7].tolist()]
    ([-0.2887, 2.5981], [0.2887, -2.5981])
    """
    hinted = teacher_forced.any(1)
    hinted_group = group * 2 + hinted.long()
    scaled = (
        (reward - group_mean(reward, hinted_group, scored))
        * scored
        / (group_std(reward, hinted_group, scored, ddof=0) + eps)
    )
    incorrect = 1 - correct
    unhinted_failure, hinted_failure = (group_mean(incorrect, group, scored & kind) for kind in (~hinted, hinted))
    has_both = (group_size(group, scored & hinted) > 0) & (group_size(group, scored & ~hinted) > 0)
    share = torch.where(
        has_both & (unhinted_failure + hinted_failure > 0),
        unhinted_failure / (unhinted_failure + hinted_failure).clamp(min=1e-12),
        torch.full_like(unhinted_failure, 0.5),
    )
    positive_weight = torch.where(hinted, 1 - share, share)
    return (scaled * 2 * torch.where(scaled > 0, positive_weight, 1 - positive_weight)).float()


@method(
    paper="2512.13095",
    title="ADHint: gradient modulation and selective masking of hint tokens",
    checked="reconstructed (the masking is the paper's, the kernel is ours)",
    couples="row",
)
def adhint_credit(advantage: PerToken, teacher_forced: PerToken, mask: PerToken, entropy_old: PerToken) -> PerToken:
    """Hint tokens get A g where the row's A > 0 and 0 elsewhere; g = exp(-|H_t - H| / H), H the continuation's mean entropy.

    >>> import torch
    >>> H = torch.tensor([[0.2, 1.0, 2.5, 1.0]]); hint = torch.tensor([[True, True, True, False]])
    >>> A = torch.tensor([[0.0, 0, 0, 1]])
    >>> [round(v, 6) for v in adhint_credit(A, hint, torch.ones(1, 4).bool(), H)[0].tolist()]
    [0.449329, 1.0, 0.22313, 1.0]
    >>> adhint_credit(-A, hint, torch.ones(1, 4).bool(), H)[0].abs().tolist()
    [0.0, 0.0, 0.0, 1.0]
    """
    policy_tokens = mask & ~teacher_forced
    mean_entropy = row_mean(entropy_old, policy_tokens)[:, None].clamp(min=1e-6)
    modulation = torch.exp(-(entropy_old - mean_entropy).abs() / mean_entropy)
    row_advantage = row_mean(advantage, policy_tokens)[:, None].clamp(min=0)
    hints = teacher_forced & policy_tokens.any(1, keepdim=True)
    return torch.where(hints, row_advantage * modulation, advantage)
