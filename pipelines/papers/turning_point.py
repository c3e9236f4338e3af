"""Segments are paid by the rise in Monte-Carlo value, and where the trend turns by all that is still to come.

Presets: turning_point.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import standardised
from pipelines.rlvr.ops_turns import turns_to_tokens


@method(
    paper="https://github.com/YunzeTong/TurningPoint-GRPO",
    title="Alleviating Sparse Rewards by Modeling Step-Wise and Long-Term Sampling Effects in Flow-Based GRPO (TurningPoint-GRPO)",
    checked="official code (read; steps of denoising there, segments between Monte-Carlo values here; turning points are not balanced)",
    couples="group",
    zero_variance_groups="learns",
)
def turning_point(
    reward: PerRow,
    mc_value: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    token_penalty: PerToken,
    *,
    eta: Annotated[float, Field(ge=0)] = 1.0,
    first: bool = True,
    consistent: bool = True,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """Segment t gets R_t - R_{t-1}, at a turning point eta (R - R_{t-1}), standardised over the group's segments with the same number.

    R_0, R_1, ... are the values before the row's segments (`rollout: chain`), less what a divergence in the reward charged the tokens
    before them, and its reward R is the last. With s_t = sign(R_t - R_{t-1})
    sign(R - R_0), a turning point is where s_{t-1} < 0 < s_t; `consistent` asks for sign(R_t - R_{t-1}) = sign(R - R_t) too, and
    `first` lets the first segment be one where it is consistent. Tokens before the first value get 0.

    >>> import torch
    >>> V = torch.tensor([[0.2, 0.1, 0.4, 0.5], [0.5, 0.4, 0.9, 0.6]]); one = torch.ones(2).bool()
    >>> gains(V.double(), torch.tensor([0.9, 0.7]).double(), torch.ones(2, 4).bool())[0].tolist()
    [-0.1, 0.8, 0.1, 0.4]
    >>> turning_point(torch.tensor([0.9, 0.7]), V, torch.zeros(2).long(), one, V > 0, V * 0)[0].tolist()
    [0.0, 0.707104, 0.707105, 0.707104]
    """
    valued = mask & ~mc_value.isnan()
    number = valued.cumsum(1) - 1
    most = max(1, int(valued.sum(1).max()))
    values = torch.zeros(len(mask), most).double()
    taken = torch.arange(most) < valued.sum(1)[:, None]
    charged = token_penalty.double() * mask
    values[taken] = (mc_value.double() - (charged.cumsum(1) - charged))[valued]
    paid = gains(values, reward.double(), taken, eta=eta, first=first, consistent=consistent)
    used = taken & scored[:, None]
    index = group[:, None] * most + torch.arange(most)
    standard = standardised(paid.flatten(), index.flatten(), used.flatten(), eps=eps).view_as(paid)
    return turns_to_tokens(standard, number) * mask


def gains(
    values: torch.Tensor,
    reward: torch.Tensor,
    taken: torch.Tensor,
    *,
    eta: float = 1.0,
    first: bool = True,
    consistent: bool = True,
) -> torch.Tensor:
    """What each segment is paid, float64 [B, K].

    Args:
        values: float64 [B, K], before each segment.
        reward: float64 [B].
        taken: bool [B, K], segments that exist; those of a row come first.
    """
    final = reward[:, None]
    following = torch.cat([values[:, 1:], final], 1)
    last = taken & ~torch.cat([taken[:, 1:], torch.zeros_like(taken[:, :1])], 1)
    following = torch.where(last, final, following)
    rise = following - values
    trend = rise.sign() * (final - values[:, :1]).sign()
    agrees = rise.sign() * (final - following).sign() > 0
    before = torch.cat([torch.zeros_like(trend[:, :1]), trend[:, :-1]], 1)
    turns = (before < 0) & (trend > 0)
    if consistent:
        turns = turns & agrees
    if first:
        turns[:, 0] = agrees[:, 0]
    return torch.where(turns, eta * (final - values), rise) * taken
