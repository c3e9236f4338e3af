"""Turns taken without hesitation weigh more, uncertain ones less.

Presets: aem.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import SAME, group_max, group_mean, group_min
from pipelines.rlvr.ops_turns import turns_to_tokens


@method(
    paper="2605.00425",
    title="AEM: Adaptive Entropy Modulation for Multi-Turn Agentic Reinforcement Learning",
    checked="reconstructed (formula at second hand; strength and the scope, all turns of a group, are assumed)",
    couples="group",
    reduces_to="strength 0 changes nothing",
)
def aem(
    advantage: PerToken,
    entropy_old: PerToken,
    turn: PerToken,
    group: PerRow,
    mask: PerToken,
    *,
    strength: Annotated[float, Field(ge=0)] = 1.0,
) -> PerToken:
    """A times alpha, alpha = exp(-strength h) over its mean in the group, h the turn's mean token entropy scaled to 0..1 in the group.

    While most advantages are negative this raises entropy, and once most are positive it lowers it. Every turn of the group's
    rollouts counts once in the statistics; where all have the same entropy, alpha is 1. No sign changes.

    >>> import torch
    >>> H = torch.tensor([[0.2, 0.5], [0.8, 1.1]]); A = torch.tensor([[1.0, 1.0], [-1.0, -1.0]]); k = torch.tensor([[0, 1], [0, 1]])
    >>> aem(A, H, k, torch.zeros(2).long(), k >= 0).tolist()
    [[1.539748, 1.103278], [-0.790533, -0.566442]]
    """
    inside = mask & (turn >= 0)
    count = max(1, int(turn.max()) + 1)
    position = turn.clamp(min=0)
    tokens = torch.zeros(len(turn), count).double().scatter_add(1, position, inside.double())
    entropy = torch.zeros_like(tokens).scatter_add(1, position, entropy_old.double() * inside) / tokens
    taken, turn_group = (tokens > 0).flatten(), group[:, None].expand(tokens.shape).flatten()
    low, high = (of(entropy.flatten(), turn_group, taken) for of in (group_min, group_max))
    spread = torch.where(high - low > SAME, high - low, torch.inf)
    alpha = (-strength * ((entropy.flatten() - low) / spread).masked_fill(~taken, 0.0)).exp()
    factor = (alpha / group_mean(alpha, turn_group, taken).clamp(min=SAME)).view_as(entropy)
    return torch.where(inside, advantage * turns_to_tokens(factor, turn), advantage)
