"""Entropy of the unsure tokens held where it was at the start.

Presets: siren.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Method
from pipelines.rlvr.ops import spread_out


@method(
    paper="2509.25133",
    title="Rethinking Entropy Regularization in Large Reasoning Models (SIREN)",
    checked="official code, 10 cases",
    batch_coupled=True,
)
class siren(Method):
    """(H - anchor)^2, with H the mean over rows of the mean top entropy of each row's least certain tokens.

    Top entropy covers the most probable tokens that hold `nucleus` together. A row's tokens above its own `peak`-quantile count; a row of
    equal entropies has none and counts as 0. The anchor is H over the first step's whole batch, each row as of its update; a run of one
    update a step begins with a term of 0. Unlike a bonus it pulls entropy down too where it is above the anchor. Its weight is 0.005 in the
    paper. H, the term and its gradient were compared with the released code, with the anchor given; that the anchor is over the first
    step's whole batch is the paper's description, and was not compared with the released trainer.
    """

    def __init__(
        self,
        *,
        nucleus: Annotated[float, Field(gt=0, le=1)] = 0.8,
        peak: Annotated[float, Field(ge=0, lt=1)] = 0.8,
    ) -> None:
        self.nucleus, self.peak = nucleus, peak
        self.anchor: float | None = None
        self.first_step, self.total, self.rows = -1, 0.0, 0  # what the anchor is the mean of

    def __call__(
        self, entropy_top_p: PerToken, mask: PerToken, in_loss: PerRow, weight: PerToken, step: int
    ) -> PerToken:
        """The term, spread over the tokens so that their weighted sum is it.

        >>> s = siren(); s.anchor = 0.6; H = torch.arange(10.0)[None] / 10; one = torch.ones(1, 10)
        >>> round((0.005 * s(H, one.bool(), one.bool()[0, :1], one / 10, 3) * one / 10).sum().item(), 7)
        0.0003125
        """
        used = mask & in_loss[:, None]
        mean = self.mean(entropy_top_p, used)
        if self.anchor is None:
            self.first_step = step
        if step == self.first_step:
            rows = int(used.any(1).sum())
            self.total, self.rows = self.total + float(mean.detach()) * rows, self.rows + rows
            self.anchor = self.total / max(1, self.rows)
        return spread_out((mean - (self.anchor or 0.0)) ** 2, weight)

    def column_options(self) -> dict[str, Any]:
        """The probability mass that `entropy_top_p` covers."""
        return {"entropy_top_p": self.nucleus}

    def mean(self, entropy_top_p: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """H: the mean over rows that have a used token of the mean over their tokens above the quantile, a scalar."""
        kept = used & (entropy_top_p > self._bound(entropy_top_p.detach(), used))
        per_row = (entropy_top_p * kept).sum(1) / kept.sum(1).clamp(min=1)
        return per_row.sum() / used.any(1).sum().clamp(min=1)

    def _bound(self, values: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """Each row's quantile over its used tokens, linear between neighbours, [B, 1]."""
        ordered = values.masked_fill(~used, torch.inf).sort(1).values
        position = self.peak * (used.sum(1, keepdim=True) - 1).clamp(min=0)
        lower = position.floor().long()
        upper = (lower + 1).minimum((used.sum(1, keepdim=True) - 1).clamp(min=0))
        lower_value, upper_value = ordered.gather(1, lower), ordered.gather(1, upper)
        interpolated = lower_value + (position - lower) * (upper_value - lower_value)
        return torch.where(used.any(1, keepdim=True), interpolated, torch.inf)

    def state_dict(self) -> dict[str, Any]:
        """The anchor."""
        return {"anchor": self.anchor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.anchor = state["anchor"]
