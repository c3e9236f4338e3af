"""The best row of a group alone, against the second best."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import SAME, group_max, group_size, group_std, group_sum


@method(
    paper="2503.19595",
    title="Optimizing Language Models for Inference Time Objectives using Reinforcement Learning (pass@k)",
    checked="third-party code (verl), 10 cases",
    couples="group",
)
def grpo_passk(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    scale: Literal["std", "none"] = "std",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """What a row adds to the best of its k: the best row has its lead over the second best, all others 0.

        A_i = (r_i - max_{j != i} r_j) / (std_group r + eps) where r_i is the only largest, else 0

    The group is the k of pass@k. With rewards of 0 and 1 a group teaches only where one row alone is correct, and nothing is pushed down:
    for exploration on hard problems, where pass@1 falls while pass@k stays. Two best rows have no lead. A group of one gets 0 (verl refuses
    it).

    >>> import torch
    >>> r, g = torch.tensor([0.0, 1, 0, 1, 1]), torch.tensor([0, 0, 0, 1, 1])
    >>> grpo_passk(r, g, torch.ones(5).bool(), scale="none").tolist(), grpo_passk(r, g, torch.ones(5).bool())[1].item()
    ([0.0, 1.0, 0.0, 0.0, 0.0], 1.732048)
    """
    best = (reward >= group_max(reward, group, scored) - SAME) & scored
    second = group_max(reward, group, scored & ~best)
    lead = best & (group_sum(best.double(), group) == 1) & (group_size(group, scored) > 1)
    advantage = torch.where(lead, reward.double() - second, 0.0)
    return (advantage / (group_std(reward, group, scored) + eps) if scale == "std" else advantage).float()
