"""DPO made unbiased under labels that are false at a known rate."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2403.00409",
    title="Provably Robust DPO: Aligning Language Models with Noisy Feedback, eq. 9",
    checked="third-party code (trl), 1 case",
    reduces_to="dpo for false_rate 0",
)
def robust_dpo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, false_rate: Annotated[float, Field(ge=0, lt=0.5)] = 0.1,
) -> PerPair:  # fmt: skip
    """((1 - e) L(d) - e L(-d)) / (1 - 2e), with L(d) = -log sigmoid(beta d): its mean over labels that are false at the rate e is L.

    Unlike cDPO, whose gradient changes its sign where the margin is large, this one never pushes a pair back; it may be below 0.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(robust_dpo(p(-10.0), p(-12.0), p(-11.0), p(-11.0), false_rate=0.1).item(), 6)
    0.573139
    """
    logit = beta * ((chosen_logp - chosen_logp_ref) - (rejected_logp - rejected_logp_ref))
    clean, swapped = ops.classification(logit), ops.classification(-logit)
    return ((1 - false_rate) * clean - false_rate * swapped) / (1 - 2 * false_rate)
