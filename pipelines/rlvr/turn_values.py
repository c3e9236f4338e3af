"""Turns as the steps of an episode with a critic: what the advantage over turns and the critic's regression share."""

from __future__ import annotations

import torch
from torch import Tensor

from pipelines.rlvr.ops_turns import turn_starts, turns_taken


def turn_values(value: Tensor, turn: Tensor, mask: Tensor, count: int) -> Tensor:
    """The value [B, T] at the first token in `mask` of each of the first `count` turns, float64 [B, count]; 0 for turns without one.

    >>> turn_values(torch.tensor([[0.5, 0.9, 0.25]]), torch.tensor([[0, 0, 2]]), torch.ones(1, 3).bool(), 3).tolist()
    [[0.5, 0.0, 0.25]]
    """
    empty = torch.zeros(len(turn), count, dtype=torch.float64)
    return empty.scatter_add(1, turn.clamp(min=0), value.double() * turn_starts(turn, mask))


def turn_advantages(
    reward: Tensor,
    turn_reward: Tensor,
    value: Tensor,
    turn: Tensor,
    mask: Tensor,
    token_penalty: Tensor,
    *,
    discount: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """(advantage, value at its first token) of each turn, float64 [B, S]; 0 for turns without a token in `mask`, which are skipped.

    Args:
        reward: [B], with `token_penalty` taken off; what it has beyond `turn_reward` is paid to the last turn.
        turn_reward: [B, S].
        value: [B, T].
        turn: int64 [B, T].
        mask: bool [B, T].
        token_penalty: [B, T], charged to the turn of each token.
    """
    count = turn_reward.shape[1]
    taken = turns_taken(turn, mask, count)
    index, charged = turn.clamp(min=0), token_penalty.double() * (mask & (turn >= 0))
    empty = torch.zeros(taken.shape, dtype=torch.float64)
    rewards = turn_reward.double() - empty.scatter_add(1, index, charged)
    values = turn_values(value, turn, mask, count)
    rest = reward.double() + charged.sum(1) - turn_reward.double().sum(1)
    advantage = torch.zeros_like(empty)
    running = following = torch.zeros(len(empty), dtype=torch.float64)
    for s in range(count - 1, -1, -1):
        own = rewards[:, s] + rest
        td_error = own + discount * following - values[:, s]
        running = torch.where(taken[:, s], td_error + discount * lam * running, running)
        following = torch.where(taken[:, s], values[:, s], following)
        rest = torch.where(taken[:, s], 0.0, own)
        advantage[:, s] = torch.where(taken[:, s], running, 0.0)
    return advantage, values
