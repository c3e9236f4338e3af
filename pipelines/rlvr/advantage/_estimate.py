"""The backward recursion that the estimators with a critic share."""

from __future__ import annotations

import torch
from torch import Tensor

from pipelines.rlvr.ops import next_place


def outcome(reward: Tensor, token_penalty: Tensor) -> Tensor:
    """The row's reward without what a divergence charged its tokens, [B]."""
    return reward + token_penalty.sum(1)


def token_rewards(outcome: Tensor, token_penalty: Tensor, mask: Tensor) -> Tensor:
    """What each masked token is paid, float64 [B, T]: the row's outcome on the last of them, minus its own penalty."""
    last = mask & (next_place(mask) == mask.shape[1])
    return (outcome.double()[:, None] * last - token_penalty.double()) * mask


def returns_to_go(outcome: Tensor, token_penalty: Tensor, mask: Tensor, discount: float) -> Tensor:
    """Discounted sum of the token rewards from each masked token on, float64 [B, T]; other tokens take no discount."""
    paid = token_rewards(outcome, token_penalty, mask)
    total = torch.zeros_like(paid)
    ahead = torch.zeros_like(paid[:, 0])
    for t in range(mask.shape[1] - 1, -1, -1):
        ahead = torch.where(mask[:, t], paid[:, t] + discount * ahead, ahead)
        total[:, t] = ahead
    return total * mask


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
    last = (torch.arange(mask.shape[1]) * mask).amax(1, keepdim=True)
    paid = token_rewards(outcome * finished, token_penalty, mask)
    ahead = torch.where(finished, 0.0, value.gather(1, last).squeeze(1))
    carry = torch.zeros_like(ahead)
    advantage = torch.zeros_like(value)
    for t in range(mask.shape[1] - 1, -1, -1):
        here = mask[:, t]
        error = paid[:, t] + discount * ahead - value[:, t]
        carry = torch.where(here, error + discount * lam * carry, carry)
        ahead = torch.where(here, value[:, t], ahead)
        advantage[:, t] = carry * here
    return advantage.float()
