"""Rejection of tokens or whole rows that sampler and trainer disagree about."""

from math import inf, log
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.common.correction import LeavesOut
from pipelines.rlvr.ops import row_mean

HIGH = {"ratio": 1.001, "k2": 0.01, "k3": 0.01}
"""Upper bound where none is given; verl's presets have those of ratio and k3."""


@method(
    paper="https://richardli.xyz/rl-collapse",
    title="When Speed Kills Stability: rejection of rows by their geometric mean ratio (Geo-RS) or their KL (K3-RS)",
    checked="third-party code (verl, slime), 13 cases",
    reduces_to="a sampler that is the trainer rejects nothing",
)
class rejection(LeavesOut):
    """Takes tokens or rows out of the loss and its denominators where trainer and sampler are too far apart; the others stays weight 1.

        d_t = trainer - sampler;   ratio: d_t,  k2: d_t^2 / 2,  k3: exp(d_t) - 1 - d_t
        over: token: each token alone;  sum, mean: of the row;  worst: the row goes with any token of it
        kept: log(low) <= ratio's <= log(high);  k2's, k3's <= high

    The defaults are Geo-RS. Put truncated_is behind it for weights: rejection alone corrects nothing that it keeps. `low` is 1 / high
    where it is left out, and belongs to the ratio. d is clamped to ±20. verl's `k1` bounds are of sampler / trainer: turn them round.
    """

    def __init__(
        self,
        *,
        measure: Literal["ratio", "k2", "k3"] = "ratio",
        over: Literal["token", "sum", "mean", "worst"] = "mean",
        low: Annotated[float, Field(gt=0, lt=1)] | None = None,
        high: Annotated[float, Field(gt=0)] | None = None,
    ) -> None:
        high = HIGH[measure] if high is None else high
        if measure != "ratio" and low is not None:
            raise RecipeError("rlvr.credit", f"rejection: {measure} is never negative and has no low", "Leave low out.")
        if measure == "ratio" and high <= 1:
            raise RecipeError(
                "rlvr.credit", f"rejection: high: {high:g} rejects where both agree, a ratio of 1", "Set it above 1."
            )
        self.measure, self.over = measure, over
        self.bounds = (log(low or 1 / high), log(high)) if measure == "ratio" else (-inf, high)

    def __call__(
        self, advantage: PerToken, logp_old: PerToken, logp_sampler: PerToken, mask: PerToken
    ) -> tuple[PerToken, PerToken]:
        """The advantage and the share of each token that stays, both [B, T].

        >>> import torch
        >>> d, m = torch.tensor([[0.3, -0.1], [0.1, -0.1]]), torch.ones(2, 2).bool()
        >>> rejection(high=1.1)(torch.ones(2, 2), d, d * 0, m)[1].tolist()
        [[0.0, 0.0], [1.0, 1.0]]
        >>> rejection(measure="k3", over="token")(torch.ones(2, 2), d, d * 0, m)[1].tolist()
        [[0.0, 1.0], [1.0, 1.0]]
        """
        d = (logp_old - logp_sampler).clamp(-20, 20)
        value = d if self.measure == "ratio" else d.square() / 2 if self.measure == "k2" else d.expm1() - d
        stays = self.note(self._kept(value, mask) & mask, mask)
        return advantage * stays, stays.to(advantage.dtype)

    def _kept(self, value: Tensor, mask: Tensor) -> Tensor:
        if self.over == "sum":
            value = value.masked_fill(~mask, 0.0).sum(1, keepdim=True)
        elif self.over == "mean":
            value = row_mean(value.masked_fill(~mask, 0.0), mask)[:, None]
        stays = (value >= self.bounds[0]) & (value <= self.bounds[1])
        if self.over == "worst":
            stays = (stays | ~mask).all(1, keepdim=True)
        return stays.expand_as(mask)
