"""Return-to-go, whitened over the batch's tokens."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import whiten


@method(
    paper="2501.03262",
    title="REINFORCE++",
    checked="official code",
    crosses_groups="whitens over all tokens of the batch by design",
)
def reinforce_pp(
    reward: PerRow, scored: PerRow, mask: PerToken, *, gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
) -> PerToken:
    """The outcome, discounted back from the row's last trained token, whitened over the batch (ddof 1).

        R_t = gamma^(last - t) r;   A = (R - mean) / sqrt(var + 1e-8) over all trained tokens

    Distance is scored in trained tokens, so the outcome passes through tokens of the environment (one
    public implementation loses it there). All rewards equal gives 0. Put a KL penalty in the reward with
    `divergence: {where: reward}`.

    >>> import torch
    >>> m = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    >>> reinforce_pp(torch.tensor([1.0, 0.0]), torch.ones(2).bool(), m).tolist()
    [[0.7303, 0.7303, 0.7303], [-1.0954, -1.0954, 0.0]]
    """
    mask = mask & scored[:, None]
    later = mask.sum(1, keepdim=True) - mask.cumsum(1)
    returns = reward[:, None] * torch.full_like(reward, gamma)[:, None] ** later * mask
    return whiten(returns, mask)
