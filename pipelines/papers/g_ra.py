"""Rewards of earlier turns count only where the outcome is good enough.

Presets: g_ra.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken, PerTurn
from pipelines.rlvr.ops_turns import last_taken, turns_taken


@method(
    paper="2508.10548",
    title="Stabilizing Long-term Multi-turn RL with Gated Rewards (G-RA)",
    checked="reconstructed (corroborated by a third-party implementation; the weight is ours)",
    couples="row",
    shapes_turns=True,
)
def g_ra(
    turn_reward: PerTurn,
    turn: PerToken,
    mask: PerToken,
    *,
    weight: Annotated[float, Field(ge=0)] = 0.5,
    threshold: float = 0.0,
) -> PerTurn:
    """Each earlier turn's reward times `weight` where the outcome > threshold, else 0; the outcome stays.

    The outcome is the last turn's reward and whatever the row earned beyond its turns.

    >>> import torch
    >>> r = torch.tensor([[0.2, 0.1, 0.1, 1.0], [0.2, 0.3, 0.3, 0.0]]); k = torch.arange(4).expand(2, 4)
    >>> g_ra(r, k, k >= 0).tolist()
    [[0.1, 0.05, 0.05, 1.0], [0.0, 0.0, 0.0, 0.0]]
    """
    last = last_taken(turns_taken(turn, mask, turn_reward.shape[1]))
    outcome = (turn_reward * last).sum(1, keepdim=True)
    return torch.where(last, turn_reward, weight * turn_reward * (outcome > threshold + 1e-6))
