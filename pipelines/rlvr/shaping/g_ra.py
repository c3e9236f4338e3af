"""Rewards of earlier turns count only where the outcome is good enough."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerTurn


@method(
    paper="2508.10548",
    title="Stabilizing Long-term Multi-turn RL with Gated Rewards (G-RA)",
    checked="reconstructed (corroborated by a third-party implementation; the weight is ours)",
)
def g_ra(
    reward: PerRow,
    turn_reward: PerTurn,
    turn_state: PerTurn,
    *,
    weight: Annotated[float, Field(ge=0)] = 0.5,
    threshold: float = 0.0,
) -> PerRow:
    """outcome + weight * (rewards of the earlier turns) where outcome > threshold, else the outcome alone.

    The outcome is the last turn's reward and whatever the row earned beyond its turns.

    >>> import torch
    >>> r = torch.tensor([[0.2, 0.1, 0.1, 1.0], [0.2, 0.3, 0.3, 0.0]]); k = torch.arange(4).expand(2, 4)
    >>> g_ra(r.sum(1), r, k).tolist()
    [1.2, 0.0]
    """
    last = ((turn_state >= 0).sum(1) - 1).clamp(min=0)
    final = turn_reward.gather(1, last[:, None]).squeeze(1)
    earlier_reward = turn_reward.sum(1) - final
    outcome = reward - earlier_reward
    return outcome + weight * earlier_reward * (outcome > threshold + 1e-6)
