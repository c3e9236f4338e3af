"""Importance weights against sampler-trainer mismatch."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="https://fengyao.notion.site/off-policy-rl",
    title="Truncated importance sampling between inference engine and trainer",
    checked="third-party code (verl), 5 cases",
    ratio_level="token",
    reduces_to="a sampler that is the trainer gives weights of 1",
)
def truncated_is(
    advantage: PerToken, logp_old: PerToken, logp_sampler: PerToken, *, cap: Annotated[float, Field(gt=0)] = 2.0
) -> PerToken:
    """A_t * min(exp(trainer - sampler), cap), per token; the exponent is clamped to ±20.

    There is no lower bound. The authors brought it into verl, which multiplies the loss by the weight; here it multiplies the
    advantage, the same where the loss is proportional to it.

    >>> import torch
    >>> d = torch.tensor([[0.1, 1.2, -0.5]])
    >>> truncated_is(torch.ones(1, 3), d, d * 0).tolist()
    [[1.105171, 2.0, 0.606531]]
    """
    return advantage * (logp_old - logp_sampler).clamp(-20, 20).exp().clamp(max=cap)
