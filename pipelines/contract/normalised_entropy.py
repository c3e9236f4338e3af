"""Normalised entropy of a token, as the sampler and methods read it."""

from __future__ import annotations

import torch
from torch import Tensor


def normalised_entropy(entropy: Tensor, pivot: float, top: float, bottom: float) -> Tensor:
    """Log-entropy against a pivot, float32 from -1 to 1: 1 at `top` above it, -1 at `bottom` below; 0 where there is no spread.

    >>> H = torch.tensor([0.05, 0.2, 1.6])
    >>> normalised_entropy(H, pivot=-1.609438, top=2.079442, bottom=1.386294).tolist()
    [-1.0, 0.0, 1.0]
    """
    distance = entropy.clamp(min=1e-8).log() - pivot
    above = distance / top if top > 1e-6 else distance * 0
    below = distance / bottom if bottom > 1e-6 else distance * 0
    return torch.where(distance > 0, above, below).clamp(-1, 1)
