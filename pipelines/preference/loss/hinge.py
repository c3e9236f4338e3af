"""A hinge in place of the logistic loss."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair


@method(
    paper="2309.06657",
    title="Statistical Rejection Sampling Improves Preference Optimization (RSO); SLiC-HF (2305.10425) against a reference",
    checked="third-party code (trl), 1 case",
)
def hinge(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1,
) -> PerPair:  # fmt: skip
    """max(0, 1 - beta d), with d as in `dpo`: a pair whose margin is above 1 / beta has no gradient.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(hinge(p(-10.0), p(-12.0), p(-11.0), p(-11.0)).item(), 6)
    0.8
    """
    return (1 - beta * ((chosen_logp - chosen_logp_ref) - (rejected_logp - rejected_logp_ref))).relu()
