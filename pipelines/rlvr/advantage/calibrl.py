"""Reward against the mean of the group's rollouts; demonstrations are only looked at."""

from typing import Annotated, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import demonstrations, standardised


@method(
    paper="2602.20197",
    title="Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning (CalibRL's advantage)",
    checked="official code, 5 cases",
    requires=(("rollout", "demonstrated"),),
    reduces_to="without a demonstration it is grpo",
)
def calibrl(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    teacher_forced: PerToken,
    *,
    scale: Literal["none", "std"] = "none",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> tuple[PerToken, PerToken]:
    """Reward minus the mean of the group's rollouts; a demonstration is in no statistic and leaves the loss.

        A_i = r_i - mean of the group's rollouts        (scale: std divides by their deviation + eps)

    Without a scale |A| is the rarity of the row's outcome in its group: with a share p of correct rows it is 1 - p for a correct one and p
    for an incorrect one. `auxiliary_loss: calibrl` weights its guidance by it. A group with one rollout gets 0; the released code subtracts
    nothing there.

    >>> import torch
    >>> demo = torch.tensor([0, 0, 0, 0, 1]).bool()[:, None]; g, yes = torch.zeros(5).long(), torch.ones(5).bool()
    >>> advantage, share = calibrl(torch.tensor([1.0, 0, 0, 0, 1]), g, yes, yes[:, None], demo)
    >>> advantage.squeeze(1).tolist(), share.squeeze(1).tolist()
    ([0.75, -0.25, -0.25, -0.25, 0.0], [1.0, 1.0, 1.0, 1.0, 0.0])
    """
    rollouts = scored & ~demonstrations(mask, teacher_forced)
    advantage = standardised(reward, group, rollouts, scale=scale == "std", eps=eps)
    inside = mask & rollouts[:, None]
    return advantage.float()[:, None] * inside, inside.float()
