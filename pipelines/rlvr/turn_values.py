"""Turns as the steps of an episode with a critic: what the advantage over turns and the critic's regression share."""

from __future__ import annotations

import torch
from torch import Tensor

from pipelines.rlvr.ops import next_index
from pipelines.rlvr.ops_turns import turn_ends, turn_starts, turns_taken, turns_to_tokens


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
    values = turn_values(value, turn, mask, count)
    paid = turn_payments(reward, turn_reward, turn, mask, token_penalty)
    td_error = paid + discount * following_values(values, taken) - values
    advantage = torch.zeros_like(values)
    running = torch.zeros(len(values), dtype=torch.float64)
    for s in range(count - 1, -1, -1):
        running = torch.where(taken[:, s], td_error[:, s] + discount * lam * running, running)
        advantage[:, s] = torch.where(taken[:, s], running, 0.0)
    return advantage, values


def turn_payments(reward: Tensor, turn_reward: Tensor, turn: Tensor, mask: Tensor, token_penalty: Tensor) -> Tensor:
    """What each turn with a token in `mask` is paid, float64 [B, S]; 0 for others, whose pay the turn before them gets.

    Args as in `turn_advantages`.
    """
    taken = turns_taken(turn, mask, turn_reward.shape[1])
    charged = token_penalty.double() * (mask & (turn >= 0))
    paid = turn_reward.double().scatter_add(1, turn.clamp(min=0), -charged)
    rest = reward.double() + charged.sum(1) - turn_reward.double().sum(1)
    for s in range(paid.shape[1] - 1, -1, -1):
        own = paid[:, s] + rest
        rest = torch.where(taken[:, s], 0.0, own)
        paid[:, s] = torch.where(taken[:, s], own, 0.0)
    return paid


def immediate_rewards(
    reward: Tensor, turn_reward: Tensor | None, turn: Tensor | None, mask: Tensor, token_penalty: Tensor
) -> Tensor:
    """What each token in `mask` is paid, float32 [B, T]; 0 on others. Advantages and what critics are fitted to both come from it.

    The reward of a turn is paid on its last token in `mask`; a row without such turns is paid on its last token in `mask`. Each token is
    charged its own penalty. A row's sum is its reward, but for what was paid before its first token.

    Args:
        reward: [B], with `token_penalty` taken off; what it has beyond `turn_reward` is paid to the last turn.
        turn_reward: [B, S]; None where rows have no turns.
        turn: int64 [B, T], -1 outside turns; None where rows have no turns.
        mask: bool [B, T].
        token_penalty: [B, T].

    >>> turn, inside = torch.tensor([[0, 0, -1, 1, 1]]), torch.tensor([[True, True, False, True, True]])
    >>> immediate_rewards(torch.tensor([1.5]), torch.tensor([[1.0, 0.25]]), turn, inside, torch.zeros(1, 5)).tolist()
    [[0.0, 1.0, 0.0, 0.0, 0.5]]
    """
    penalty = token_penalty.double() * mask
    outcome = reward.double() + penalty.sum(1)
    paid = outcome[:, None] * (mask & (next_index(mask) == mask.shape[1]))
    if turn_reward is not None and turn is not None:
        of_turns = turn_payments(outcome, turn_reward, turn, mask, torch.zeros_like(penalty))
        has_turns = (mask & (turn >= 0)).any(1, keepdim=True)
        paid = torch.where(has_turns, turns_to_tokens(of_turns, turn) * turn_ends(turn, mask), paid)
    return (paid - penalty).float()


def following_values(values: Tensor, taken: Tensor) -> Tensor:
    """The value of the next turn that is taken, [B, S]; 0 after the last.

    >>> following_values(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[True, False, True]])).tolist()
    [[3.0, 3.0, 0.0]]
    """
    following = torch.zeros_like(values)
    for s in range(values.shape[1] - 2, -1, -1):
        following[:, s] = torch.where(taken[:, s + 1], values[:, s + 1], following[:, s + 1])
    return following
