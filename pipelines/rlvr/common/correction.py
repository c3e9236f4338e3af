"""What corrections of the sampler-trainer mismatch share: the weight, and the share of the tokens that they leave out."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from pipelines.contract.method import Method
from pipelines.rlvr.ops import ratio, row_mean

Level = Literal["token", "sequence", "geometric"]


def correction(logp_old: Tensor, logp_sampler: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Importance weight trainer / sampler of each token, [B, T]; the exponent is clamped to ±20.

    Args:
        level: `token`: the token's own ratio; `sequence`: the product over the row's tokens; `geometric`: their geometric mean.

    >>> import torch
    >>> d, m = torch.tensor([[0.0, 1.0, 9.0]]), torch.tensor([[True, True, False]])
    >>> [correction(d, d * 0, m, level)[0, 0].item() for level in ("token", "sequence", "geometric")]
    [1.0, 2.718282, 1.648721]
    """
    if level == "token":
        return ratio(logp_old, logp_sampler)
    log_ratio = (logp_old - logp_sampler).masked_fill(~mask, 0.0)
    of_row = log_ratio.sum(1) if level == "sequence" else row_mean(log_ratio, mask)
    return of_row[:, None].clamp(-20, 20).exp().expand_as(log_ratio)


class LeavesOut(Method):
    """A part that gives some of the step's trained tokens no weight, and shows their share."""

    share: float | None = None
    """Of the last step's trained tokens."""

    def note(self, stays: Tensor, mask: Tensor) -> Tensor:
        """Remember the share; returns `stays`, both bool [B, T]."""
        self.share = int((mask & ~stays).sum()) / max(1, int(mask.sum()))
        return stays

    def metrics(self) -> dict[str, float]:
        """The share of the trained tokens that were left out."""
        return {} if self.share is None else {"left_out_share": self.share}
