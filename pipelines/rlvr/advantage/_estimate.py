"""The backward recursion that the estimators with a critic share."""

from __future__ import annotations

import torch
from torch import Tensor

from pipelines.rlvr.ops import next_place


def outcome(reward: Tensor, token_penalty: Tensor) -> Tensor:
    """The row's reward without what a divergence charged its tokens, [B]."""
    return reward + token_penalty.sum(1)


def token_rewards(outcome: Tensor, token_penalty: Tensor, mask: Tensor) -> Tensor:
    """Reward of each masked token, float64 [B, T]: the row's outcome on the last of them, minus its own penalty."""
    last = mask & (next_place(mask) == mask.shape[1])
    return (outcome.double()[:, None] * last - token_penalty.double()) * mask


def returns_to_go(outcome: Tensor, token_penalty: Tensor, mask: Tensor, discount: float) -> Tensor:
    """Discounted sum of the token rewards from each masked token on, float64 [B, T]; other tokens take no discount."""
    rewards = token_rewards(outcome, token_penalty, mask)
    returns = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for t in range(mask.shape[1] - 1, -1, -1):
        running = torch.where(mask[:, t], rewards[:, t] + discount * running, running)
        returns[:, t] = running
    return returns * mask


def generalised_advantage(
    outcome: Tensor,
    token_penalty: Tensor,
    value: Tensor,
    mask: Tensor,
    finished: Tensor,
    discount: float,
    lam: float,
) -> Tensor:
    """GAE over the masked tokens, float32 [B, T], 0 elsewhere.

    Args:
        outcome: [B], paid on the last masked token of finished rows.
        token_penalty: [B, T], taken off at each token.
        value: [B, T].
        mask: bool [B, T].
        finished: bool [B]; an unfinished row has no outcome, and the value after its end is its last value.
    """
    value = value.double()
    last_token = (torch.arange(mask.shape[1]) * mask).amax(1, keepdim=True)
    rewards = token_rewards(outcome * finished, token_penalty, mask)
    next_value = torch.where(finished, 0.0, value.gather(1, last_token).squeeze(1))
    running = torch.zeros_like(next_value)
    advantage = torch.zeros_like(value)
    for t in range(mask.shape[1] - 1, -1, -1):
        at_token = mask[:, t]
        td_error = rewards[:, t] + discount * next_value - value[:, t]
        running = torch.where(at_token, td_error + discount * lam * running, running)
        next_value = torch.where(at_token, value[:, t], next_value)
        advantage[:, t] = running * at_token
    return advantage.float()
