"""Turns whose feedback told the policy something are credited, most where the outcomes of a group say nothing."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import group_std, standardised
from pipelines.rlvr.ops_turns import turns_to_tokens


@method(
    paper="2603.00656",
    title="Information-Driven Policy Optimization for User-Centric Agents (InfoPO)",
    checked="reconstructed (the formulas, read at second hand; the standardisation is over a group's tokens)",
    provenance=("policy",),
)
def infopo(
    advantage: PerToken,
    reward: PerRow,
    feedback_gain: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    step: int,
    *,
    beta: Annotated[float, Field(ge=0)] = 0.1,
    decay: Annotated[float, Field(ge=0)] = 0.0,
    temperature: Annotated[float, Field(gt=0)] = 0.05,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """A + beta e^(-decay step) gate A_info, with gate = sigmoid(-deviation of the group's rewards / temperature).

    A turn's tokens share its gain (`feedback_gain` / tokens), and A_info is that standardised over the group's tokens that have one. Where
    outcomes differ the gate is closed; where they are all the same it is one half. The paper's scale min(1, max(std A, 1) / std A_info) is
    1, because what is standardised group by group deviates by no more than that. It decays by epochs, here by steps.

    >>> import torch
    >>> g = torch.tensor([[3.0, torch.nan], [1.0, torch.nan], [1.0, torch.nan], [1.0, torch.nan]]); one = torch.ones(4).bool()
    >>> k = torch.tensor([[0, 1]] * 4); m = torch.ones(4, 2).bool(); zero = torch.zeros(4)
    >>> infopo(torch.zeros(4, 2), zero, g, k, zero.long(), one, m, 0).tolist()
    [[0.075, 0.0], [-0.025, 0.0], [-0.025, 0.0], [-0.025, 0.0]]
    """
    size = torch.stack([((turn == s) & mask).sum(1) for s in range(feedback_gain.shape[1])], 1)
    share = turns_to_tokens((feedback_gain / size).nan_to_num(0.0), turn)
    informed = mask & scored[:, None] & (turns_to_tokens(feedback_gain.isfinite().float(), turn) > 0)
    token_group = group[:, None].expand_as(informed)
    info = standardised(share.flatten(), token_group.flatten(), informed.flatten(), eps=eps).view_as(advantage)
    gate = torch.sigmoid(-group_std(reward, group, scored) / temperature)[:, None]
    factor = beta * torch.exp(torch.tensor(-decay * step, dtype=torch.float64))
    return advantage + (factor * gate * info).float()
