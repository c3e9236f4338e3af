"""Hinted and unhinted rollouts of a problem normalised separately, and weighted by how often each kind failed."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_mean, group_size, group_std


@method(
    paper="2512.13095",
    title="ADHint: Adaptive Hints with Difficulty Priors for Reinforcement Learning",
    checked="reconstructed (the direction of each rule is the paper's, the weights are ours)",
    reduces_to="a group without hinted rows is grpo with the population deviation",
)
def adhint(
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
    >>> A = adhint(r, r, torch.zeros(8).long(), torch.ones(8).bool(), hinted)
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
