"""Importance weights against sampler-trainer mismatch that are 0 where the two are far apart."""

from typing import Annotated

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.common.correction import LeavesOut, Level, correction


@method(
    paper="2510.18855",
    title="Every Step Evolves (IcePop); masked importance sampling (MIS)",
    checked="third-party code (TRL, slime, NeMo-RL), 15 cases",
    ratio_level="token",
    reduces_to="a sampler that is the trainer gives weights of 1; without a weight outside the bounds it is truncated_is",
)
class masked_is(LeavesOut):
    """A_t * w where low <= w <= high, otherwise 0; w = exp(trainer - sampler) as in truncated_is.

    The defaults are IcePop's. `level: sequence` is masked IS of whole answers (TRL's default, with `low: null, high: 3`), `geometric` the
    row's geometric mean. What is outside still counts in the denominators of the loss; `rejection` takes it out of them too.
    """

    def __init__(
        self,
        *,
        low: Annotated[float, Field(gt=0)] | None = 0.5,
        high: Annotated[float, Field(gt=0)] | None = 5.0,
        level: Level = "token",
    ) -> None:
        self.low, self.high, self.level = low or 0.0, float("inf") if high is None else high, level
        if self.low >= self.high:
            raise RecipeError("rlvr.credit", f"masked_is: no weight is between {low} and {high}", "Set low below high.")

    def __call__(self, advantage: PerToken, logp_old: PerToken, logp_sampler: PerToken, mask: PerToken) -> PerToken:
        """The weighted advantage, [B, T].

        >>> import torch
        >>> d, m = torch.tensor([[0.1, 2.0, -0.5, -0.7]]), torch.ones(1, 4).bool()
        >>> masked_is()(torch.ones(1, 4), d, d * 0, m).tolist()
        [[1.105171, 0.0, 0.606531, 0.0]]
        """
        weight = correction(logp_old, logp_sampler, mask, self.level)
        stays = self.note((weight >= self.low) & (weight <= self.high), mask)
        return advantage * weight * stays
