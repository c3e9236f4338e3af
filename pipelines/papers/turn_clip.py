"""Clipped surrogate with one ratio per turn.

Presets: turn_clip.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import clipped


def segment_mean(x: Tensor, segment: Tensor, mask: Tensor) -> Tensor:
    """Mean over a row's masked tokens of the same segment, returned per token; 0 outside the mask.

    Args:
        x: float [B, T], may carry a gradient.
        segment: int64 [B, T]; negative outside segments.
        mask: bool [B, T].
    """
    inside = mask & (segment >= 0)
    width = int(segment.max().clamp(min=0)) + 1
    segment_index = segment.clamp(min=0)
    total = torch.zeros(len(x), width, dtype=x.dtype).scatter_add(1, segment_index, x * inside)
    count = torch.zeros(len(x), width, dtype=x.dtype).scatter_add(1, segment_index, inside.to(x.dtype))
    return (total / count.clamp(min=1)).gather(1, segment_index) * inside


@method(
    paper="2511.20718",
    title="ST-PPO: Stabilized Off-Policy PPO for Multi-Turn Agents Training (turn-level ratio)",
    checked="reconstructed (geometric mean as the turn's ratio; without the scaling by the clipped part)",
    zero_gradient_at_zero_advantage=True,
    ratio_level="turn",
    reduces_to="turns of one token are clip; one turn per row is a sequence ratio",
)
def turn_clip(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    mask: PerToken,
    turn: PerToken,
    *,
    low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    high: Annotated[float, Field(gt=0)] = 0.2,
) -> PerToken:
    """The turn is the unit, as a sequence is for gspo: ratio and advantage are means over its tokens.

        log w = mean_t (logp - logp_old);  A = mean_t A_t;  l = max(-w A, -clip(w, 1 - low, 1 + high) A) per token

    >>> import torch
    >>> d = torch.tensor([[0.3, -0.1, 0.1, 0.0, 0.6]]); A = torch.tensor([[1.0, 1, 1, -0.5, -0.5]])
    >>> k = torch.tensor([[0, 0, 0, 1, 1]])
    >>> [round(v, 6) for v in turn_clip(d, d * 0, A, d > -9, k)[0].tolist()]
    [-1.105171, -1.105171, -1.105171, 0.674929, 0.674929]
    """
    turn_ratio = segment_mean(logp - logp_old, turn, mask).clamp(-20, 20).exp()
    return clipped(turn_ratio, segment_mean(advantage, turn, mask), low, high) * mask
