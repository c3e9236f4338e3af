"""Importance weights against sampler-trainer mismatch."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.common.correction import Level, correction


@method(
    paper="https://fengyao.notion.site/off-policy-rl",
    title="Truncated importance sampling between inference engine and trainer",
    checked="third-party code (verl, TRL), 15 cases",
    ratio_level="token",
    reduces_to="a sampler that is the trainer gives weights of 1",
    couples="row",
)
def truncated_is(
    advantage: PerToken,
    logp_old: PerToken,
    logp_sampler: PerToken,
    mask: PerToken,
    *,
    cap: Annotated[float, Field(gt=0)] | None = 2.0,
    floor: Annotated[float, Field(ge=0)] = 0.0,
    level: Level = "token",
) -> PerToken:
    """A_t * clip(w, floor, cap), with w = exp(trainer - sampler) of the token, or of its whole row; the exponent is clamped to ±20.

    `level: sequence` takes the product over the row, the unbiased weight of an answer; `geometric` its geometric mean. `cap: null`
    truncates nothing. The authors brought it into verl, which multiplies the loss by the weight; here it multiplies the advantage, the
    same where the loss is proportional to it.

    >>> import torch
    >>> d, m = torch.tensor([[0.1, 1.2, -0.5]]), torch.ones(1, 3).bool()
    >>> truncated_is(torch.ones(1, 3), d, d * 0, m).tolist()
    [[1.105171, 2.0, 0.606531]]
    >>> truncated_is(torch.ones(1, 3), d, d * 0, m, cap=None, level="sequence").tolist()
    [[2.225541, 2.225541, 2.225541]]
    """
    return advantage * correction(logp_old, logp_sampler, mask, level).clamp(floor, cap)
