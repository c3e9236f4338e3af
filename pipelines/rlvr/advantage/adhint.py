"""Hinted and unhinted rollouts of a problem judged apart, and weighed by how hard each kind was."""

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
    """Each kind's rewards normalised apart, then right without a hint and wrong with one count more.

        s = D / (D + D_hint), D the share of wrong rows; plain: 2 s above 0, 2 (1 - s) below; hinted the other way round

    >>> import torch
    >>> r = torch.tensor([0.0, 0, 1, 0, 1, 1, 0, 1]); hinted = (torch.arange(8) > 3)[:, None]
    >>> A = adhint(r, r, torch.zeros(8).long(), torch.ones(8).bool(), hinted)
    >>> [round(v, 4) for v in A[1:3].tolist()], [round(v, 4) for v in A[5:7].tolist()]
    ([-0.2887, 2.5981], [0.2887, -2.5981])
    """
    hinted = teacher_forced.any(1)
    side = group * 2 + hinted.long()
    scaled = (reward - group_mean(reward, side, scored)) * scored / (group_std(reward, side, scored, ddof=0) + eps)
    wrong = 1 - correct
    plain, helped = (group_mean(wrong, group, scored & kind) for kind in (~hinted, hinted))
    both = (group_size(group, scored & hinted) > 0) & (group_size(group, scored & ~hinted) > 0)
    share = torch.where(
        both & (plain + helped > 0), plain / (plain + helped).clamp(min=1e-12), torch.full_like(plain, 0.5)
    )
    up = torch.where(hinted, 1 - share, share)
    return (scaled * 2 * torch.where(scaled > 0, up, 1 - up)).float()
