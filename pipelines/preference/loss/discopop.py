"""A loss that a language model wrote: logistic where the margin is negative, exponential where it is positive."""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2406.08414",
    title="Discovering Preference Optimization Algorithms with and for Large Language Models (DiscoPOP), eq. 5",
    checked="third-party code (trl), 1 case",
)
def discopop(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, tau: Annotated[float, Field(gt=0, le=1)] = 0.05,
) -> PerPair:  # fmt: skip
    """(1 - m) (-log sigmoid(x)) + m e^(-x), with x = beta d as in `dpo` and m = sigmoid(x / tau).

    It is not convex: between the two parts, at x of a few tau, a larger margin may cost more. m e^(-x) is computed from one exponent,
    which for tau up to 1 does not overflow where x is very negative.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(discopop(p(-10.0), p(-12.0), p(-11.0), p(-11.0)).item(), 6)
    0.814763
    """
    logit = beta * ((chosen_logp - chosen_logp_ref) - (rejected_logp - rejected_logp_ref))
    exponential = (F.logsigmoid(logit / tau) - logit).exp()
    return ops.classification(logit) * (-logit / tau).sigmoid() + exponential
