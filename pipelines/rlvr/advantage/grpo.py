"""Reward against the group's mean, scaled."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_std, standardised


@method(
    paper="2402.03300",
    title="DeepSeekMath: Group Relative Policy Optimization",
    checked="third-party code (verl), 7 cases; official code for scale none and batch, 8 cases",
    reduces_to="scale: none is Dr. GRPO's advantage (2503.20783); scale: batch is Lite PPO's (2508.08221)",
    couples="group",
    couples_batch_with=(("scale", "batch"),),
)
def grpo(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    scale: Literal["std", "none", "batch"] = "std",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """Reward minus the group's mean, divided by the group's (or batch's) deviation, ddof 1.

        A_i = (r_i - mean_group r) / (std_group r + eps)

    A homogeneous group and a group of one get 0 (verl keeps the raw reward of a group of one). `scale: batch` divides
    by one deviation of the
    whole batch's raw rewards, `scale: none` does not divide. Unscored rows stay out of the statistics and get 0.

    >>> import torch
    >>> r = torch.tensor([1.0, 0, 0, 1, 0]); g = torch.zeros(5, dtype=torch.int64)
    >>> grpo(r, g, torch.ones(5, dtype=torch.bool)).tolist()
    [1.095443, -0.730295, -0.730295, 1.095443, -0.730295]
    """
    advantage = standardised(reward, group, scored, scale=scale == "std", eps=eps)
    if scale == "batch":
        advantage = advantage / (group_std(reward, torch.zeros_like(group), scored) + eps)
    return advantage.float()
