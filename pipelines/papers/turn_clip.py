"""Clipped surrogate with one ratio per turn.

Presets: turn_clip.
"""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import clipped
from pipelines.rlvr.ops_turns import segment_mean


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
