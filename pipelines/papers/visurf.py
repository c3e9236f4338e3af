"""A group with its demonstration as one more member.

Presets: visurf.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_max, group_mean, group_std


@method(
    paper="2510.10606",
    title="ViSurf: Visual Supervised-and-Reinforcement Fine-Tuning for Large Vision-and-Language Models",
    checked="reconstructed (summary and a third-party implementation; ddof and eps are ours)",
    couples="group",
    reduces_to="without a demonstration it is grpo",
)
def visurf(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    teacher_forced: PerToken,
    *,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """GRPO over rollouts and demonstration; a demonstration whose reward some rollout reaches counts as the rollouts' mean.

        r(demo) <- mean of the rollouts where max of the rollouts >= r(demo);   A = (r - mean) / (std + eps)

    So a demonstration teaches only what the policy cannot do yet, and then every rollout of the group is pushed down.

    >>> import torch
    >>> demo = torch.tensor([0, 0, 0, 0, 1]).bool()[:, None]; g, yes = torch.zeros(5).long(), torch.ones(5).bool()
    >>> [round(v, 6) for v in visurf(torch.tensor([0.0, 0, 0, 0, 1]), g, yes, demo).tolist()]
    [-0.447213, -0.447213, -0.447213, -0.447213, 1.78885]
    >>> [round(v, 6) for v in visurf(torch.tensor([1.0, 0, 0, 0, 1]), g, yes, demo).tolist()]
    [1.732047, -0.577349, -0.577349, -0.577349, 0.0]
    """
    demonstration = teacher_forced.any(1)
    rollouts = scored & ~demonstration
    matched = demonstration & (group_max(reward, group, rollouts) >= reward)
    capped_reward = torch.where(matched, group_mean(reward, group, rollouts), reward.double())
    centred = (capped_reward - group_mean(capped_reward, group, scored)) * scored
    return (centred / (group_std(capped_reward, group, scored) + eps)).float()
