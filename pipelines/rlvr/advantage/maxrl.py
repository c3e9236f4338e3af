"""Reward against the group's mean, in units of the mean."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_mean


@method(
    paper="2602.02710",
    title="Maximum Likelihood Reinforcement Learning (MaxRL)",
    checked="third-party code (SkyRL), 5 cases",
    couples="group",
)
def maxrl(reward: PerRow, group: PerRow, scored: PerRow, *, eps: Annotated[float, Field(gt=0)] = 1e-6) -> PerRow:
    """Reward minus the group's mean, divided by the mean: with rewards of 0 and 1 an estimate of the gradient of log p(correct).

        A_i = (r_i - mean_group r) / (mean_group r + eps)

    A correct row of a problem that is solved once in n has n - 1, of one that is always solved nearly 0: hard problems weigh more than in
    grpo. For rewards of 0 and 1 on problems of very different difficulty. Rewards are taken as at least 0; a group whose mean is below 0,
    or none of whose rows has a reward, gets 0.

    >>> import torch
    >>> r, g = torch.tensor([1.0, 0, 0, 0, 1, 1]), torch.tensor([0, 0, 0, 0, 1, 1])
    >>> maxrl(r, g, torch.ones(6).bool()).tolist()
    [2.999988, -0.999996, -0.999996, -0.999996, 0.0, 0.0]
    """
    mean = group_mean(reward, group, scored)
    return ((reward - mean) * scored * (mean > 0) / (mean.clamp(min=0) + eps)).float()
