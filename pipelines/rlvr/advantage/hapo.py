"""Rewards against the mean over the group's tokens."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_max, group_sum, standardised


@method(
    paper="https://github.com/starriver030515/HAPO",
    title="From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature (HAPO)",
    checked="official code, 7 cases",
    reduces_to="rows of equal length are grpo with the population deviation",
)
def hapo(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    most: Annotated[float, Field(gt=0)] = 5.0,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """(r - mean) / (std + eps) with mean and population deviation over the group's tokens, each with its row's reward.

    A group in which some |A| reaches `most` is normalised over rows instead, as in GRPO; the official code includes padding, with a reward
    of 0, so rewards far from 0 alone make it fall back.

    >>> import torch
    >>> m = torch.arange(6) < torch.tensor([2, 6])[:, None]
    >>> hapo(torch.tensor([1.0, 0.0]), torch.zeros(2).long(), torch.ones(2).bool(), m).tolist()
    [1.732047, -0.577349]
    """
    length = mask.sum(1).double() * scored
    group_tokens = group_sum(length, group).clamp(min=1)
    centred = (reward - group_sum(reward * length, group) / group_tokens) * scored
    std = (group_sum(centred**2 * length, group) / group_tokens).sqrt()
    by_token = centred / (std + eps)
    by_row = standardised(reward, group, scored, eps=eps)
    return torch.where(group_max(by_token.abs(), group, scored) >= most, by_row, by_token).float()
