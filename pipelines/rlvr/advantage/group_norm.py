"""The outcome against its group, and what is still paid or charged at tokens."""

from typing import Annotated, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import standardised


@method(
    paper="2510.10201",
    title="RLFR: Extending Reinforcement Learning for LLMs with Flow Environment (OpenRLHF's group_norm with rewards of tokens)",
    checked="official code (read)",
    reduces_to="without rewards or penalties of tokens it is grpo",
)
def group_norm(
    reward: PerRow,
    token_penalty: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    scale: Literal["std", "none"] = "std",
    eps: Annotated[float, Field(gt=0)] = 1e-9,
) -> PerToken:
    """A_t = (R - mean R) / (std R + eps) + sum_{s >= t} (what token s is paid - what it is charged).

    R is the row's reward without what its tokens are paid and charged: those are on the scale of the settings that pay them, and reach the
    tokens before them, whatever the group. Mean and deviation (ddof 1) are the group's; a row alone has 0 for its outcome.

    >>> import torch
    >>> paid = torch.tensor([[0.0, -0.01, 0.0], [0.0, 0.0, 0.0]]); R = torch.tensor([1.0, 0.0]) + paid.sum(1)
    >>> A = group_norm(R, -paid, torch.zeros(2).long(), torch.ones(2).bool(), torch.ones(2, 3).bool(), scale="none")
    >>> A.tolist()
    [[0.49, 0.49, 0.5], [-0.5, -0.5, -0.5]]
    """
    trained = mask & scored[:, None]
    charged = token_penalty.double() * trained
    outcome = standardised(reward.double() + charged.sum(1), group, scored, scale=scale == "std", eps=eps)
    return ((outcome[:, None] - charged.flip(1).cumsum(1).flip(1)) * trained).float()
