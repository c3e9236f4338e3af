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
    checked="reconstructed (the formulas, read at second hand; scope of the two deviations assumed: the tokens of the batch)",
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
    """A + beta e^(-decay step) gate s A_info, with gate = sigmoid(-deviation of the group's rewards / temperature).

    A turn's tokens share its gain (`feedback_gain` / tokens), and A_info is that standardised over the group's tokens that have one;
    s = min(1, max(std A, 1) / std A_info), deviations over the batch's tokens. Where outcomes differ the gate is shut; where they are
    all the same it is one half. The paper decays by epochs, here by steps.

    >>> import torch
    >>> g = torch.tensor([[3.0, torch.nan], [1.0, torch.nan], [1.0, torch.nan], [1.0, torch.nan]]); one = torch.ones(4).bool()
    >>> k = torch.tensor([[0, 1]] * 4); m = torch.ones(4, 2).bool(); zero = torch.zeros(4)
    >>> infopo(torch.zeros(4, 2), zero, g, k, zero.long(), one, m, 0).tolist()
    [[0.075, 0.0], [-0.025, 0.0], [-0.025, 0.0], [-0.025, 0.0]]
    """
    size = torch.stack([((turn == s) & mask).sum(1) for s in range(feedback_gain.shape[1])], 1).clamp(min=1)
    share = turns_to_tokens((feedback_gain / size).nan_to_num(0.0), turn) * mask
    informed = mask & scored[:, None] & (turns_to_tokens(feedback_gain.isfinite().float(), turn) > 0)
    token_group = group[:, None].expand_as(informed)
    info = standardised(share.flatten(), token_group.flatten(), informed.flatten(), eps=eps).view_as(advantage)
    spread = info[informed].std() if informed.sum() > 1 else torch.zeros(())
    outcome_spread = advantage[mask].double().std() if mask.sum() > 1 else torch.zeros(())
    scale = (outcome_spread.clamp(min=1) / spread).clamp(max=1) if spread > eps else torch.ones(())
    gate = torch.sigmoid(-group_std(reward, group, scored) / temperature)[:, None]
    factor = beta * torch.exp(torch.tensor(-decay * step, dtype=torch.float64))
    return advantage + (factor * gate * scale * info).float()
