"""Hint tokens are trained with a small constant weight, whatever the reward."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2509.06923",
    title="Staying in the Sweet Spot: Capability-Adaptive Hint Scaffolding (SEELE's supervised term)",
    checked="paper (log pi instead of the printed pi)",
    reduces_to="weight 0 leaves hints unlearned",
)
def imitate(
    advantage: PerToken, teacher_forced: PerToken, mask: PerToken, *, weight: Annotated[float, Field(ge=0)] = 1e-3
) -> PerToken:
    """Teacher-forced tokens before the policy's own get the advantage `weight`: with a ratio of 1, the gradient of weight * log pi.

    >>> import torch
    >>> imitate(torch.tensor([[0.0, -1.0]]), torch.tensor([[True, False]]), torch.ones(1, 2).bool()).tolist()
    [[0.001, -1.0]]
    """
    hints = teacher_forced & (mask & ~teacher_forced).any(1, keepdim=True)
    return advantage + (weight - advantage) * hints
