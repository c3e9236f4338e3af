"""Clipped surrogate with one ratio per turn, and with a gradient that shrinks as clipping discards more.

Presets: turn_clip, st_ppo.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.contract.method import Method
from pipelines.rlvr.ops import clipped, ratio


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
    checked="reconstructed (geometric mean as the turn's ratio)",
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
    return clipped(*_of_turns(logp, logp_old, advantage, mask, turn), low, high) * mask


def _of_turns(logp: Tensor, logp_old: Tensor, advantage: Tensor, mask: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    """Ratio and advantage of the turn that a token is in, float [B, T] each."""
    return segment_mean(logp - logp_old, turn, mask).clamp(-20, 20).exp(), segment_mean(advantage, turn, mask)


@method(
    paper="2511.20718",
    title="ST-PPO: Stabilized Off-Policy PPO for Multi-Turn Agents Training (turn-level ratio, clipping-bias correction)",
    checked="reconstructed (the decomposition is the paper's; that the divisor is at least 1 is an assumption)",
    zero_gradient_at_zero_advantage=True,
    ratio_level="turn",
    reduces_to="where nothing is clipped it is turn_clip, with level: token clip",
)
class st_ppo(Method):
    """`turn_clip` whose gradient is divided by the norm of what clipping takes out of it.

        off-policy gradient = g - C;   g of the clipped loss, C of -w A over the clipped tokens;   g' = g / max(least, |C|)

    Norms are over the weights of the policy, for each update, so an update costs a second pass forward and back
    (`optimizer/clipping_bias` is |C|). Steps with many or large clipped terms, whose advantages come from states that the critic hardly
    knows, get small. With `least` 1 an update without clipping stays as it is; near 0 it is the division by |C| itself, which Adam undoes
    where |C| stays alike from update to update. `level: token` is the paper's S-PPO.
    """

    reads_network = True

    def __init__(
        self,
        *,
        level: Literal["turn", "token"] = "turn",
        low: Annotated[float, Field(gt=0, le=1)] = 0.2,
        high: Annotated[float, Field(gt=0)] = 0.2,
        least: Annotated[float, Field(gt=0, le=1e6)] = 1.0,
    ) -> None:
        self.level, self.low, self.high, self.least = level, low, high, least

    def __call__(
        self, logp: PerToken, logp_old: PerToken, advantage: PerToken, mask: PerToken, turn: PerToken
    ) -> PerToken:
        """The clipped loss.

        >>> d = torch.tensor([[0.3, -0.1, 0.1, 0.0, 0.6]]); A = torch.tensor([[1.0, 1, 1, -0.5, -0.5]])
        >>> k, one = torch.tensor([[0, 0, 0, 1, 1]]), d > -9
        >>> [round(v, 6) for v in st_ppo()(d, d * 0, A, one, k)[0].tolist()]
        [-1.105171, -1.105171, -1.105171, 0.674929, 0.674929]
        >>> [round(v, 6) for v in st_ppo(level="token")(d, d * 0, A, one, k)[0].tolist()]
        [-1.2, -0.904837, -1.105171, 0.5, 0.911059]
        """
        return clipped(*self._units(logp, logp_old, advantage, mask, turn), self.low, self.high) * mask

    def divisor_loss(self, columns: Mapping[str, Any]) -> Tensor:
        """-w A of the tokens that are clipped, float [B, T], 0 of others; its gradient is C.

        >>> d = torch.tensor([[0.3, -0.1, 0.1, 0.0, 0.6]]); A = torch.tensor([[1.0, 1, 1, -0.5, -0.5]])
        >>> step = {"logp": d, "logp_old": d * 0, "advantage": A, "mask": d > -9, "turn": torch.tensor([[0, 0, 0, 1, 1]])}
        >>> [round(v, 6) for v in st_ppo(level="token").divisor_loss(step)[0].tolist()]
        [-1.349859, 0.0, 0.0, 0.0, 0.0]
        """
        read = (columns[name] for name in ("logp", "logp_old", "advantage", "mask", "turn"))
        weight, advantage = self._units(*read)
        unclipped = -weight * advantage
        discarded = (clipped(weight, advantage, self.low, self.high) > unclipped).detach()
        return unclipped * (discarded & columns["mask"])

    def _units(
        self, logp: Tensor, logp_old: Tensor, advantage: Tensor, mask: Tensor, turn: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.level == "turn":
            return _of_turns(logp, logp_old, advantage, mask, turn)
        return ratio(logp, logp_old), advantage
