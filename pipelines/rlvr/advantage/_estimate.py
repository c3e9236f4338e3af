"""The backward recursion that the estimators with a critic share."""

from __future__ import annotations

import torch
from torch import Tensor


def backwards(reward: Tensor, value: Tensor, mask: Tensor, finished: Tensor, discount: float, lam: float) -> Tensor:
    """GAE over the masked tokens, float32 [B, T], 0 elsewhere.

    Args:
        reward: [B], paid on the last masked token of finished rows.
        value: [B, T].
        mask: bool [B, T].
        finished: bool [B]; an unfinished row has no reward, and the value after its end is its last value.
    """
    value = value.double()
    place = torch.arange(mask.shape[1]) * mask
    last = place.amax(1, keepdim=True)
    paid = torch.zeros_like(value).scatter(1, last, (reward.double() * finished)[:, None]) * mask
    ahead = torch.where(finished, torch.zeros_like(reward).double(), value.gather(1, last).squeeze(1))
    carry = torch.zeros_like(ahead)
    out = torch.zeros_like(value)
    for t in range(mask.shape[1] - 1, -1, -1):
        here = mask[:, t]
        change = paid[:, t] + discount * ahead - value[:, t]
        carry = torch.where(here, change + discount * lam * carry, carry)
        ahead = torch.where(here, value[:, t], ahead)
        out[:, t] = torch.where(here, carry, out[:, t])
    return out.float()
