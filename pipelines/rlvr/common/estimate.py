"""The backward recursions over tokens that estimators share."""

from __future__ import annotations

import torch
from torch import Tensor


def returns_to_go(rewards: Tensor, mask: Tensor, discount: float) -> Tensor:
    """Discounted sum of the rewards [B, T] from each masked token on, float64 [B, T]; other tokens take no discount."""
    rewards = rewards.double() * mask
    if discount == 1:
        return rewards.flip(1).cumsum(1).flip(1) * mask
    returns = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for t in range(mask.shape[1] - 1, -1, -1):
        running = torch.where(mask[:, t], rewards[:, t] + discount * running, running)
        returns[:, t] = running
    return returns * mask


def generalised_advantage(
    rewards: Tensor, value: Tensor, mask: Tensor, finished: Tensor, discount: float, lam: float | Tensor
) -> Tensor:
    """GAE over the masked tokens, float32 [B, T], 0 elsewhere.

    Args:
        rewards: [B, T], what each token is paid.
        value: [B, T].
        mask: bool [B, T].
        lam: one number, or [B].
        finished: bool [B]; the value after the end of an unfinished row is its last value.
    """
    rewards, value = rewards.double(), value.double()
    last_token = (torch.arange(mask.shape[1]) * mask).amax(1, keepdim=True)
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
