"""DPO with pairs weighed by how likely the policy is to give both answers."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2406.11827",
    title="WPO: Enhancing RLHF with Weighted Preference Optimization, eq. 2, weights aligned to the policy's own draws",
    checked="third-party code (trl), 1 case",
)
def wpo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    chosen_on_policy: PerPair, rejected_on_policy: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0,
) -> PerPair:  # fmt: skip
    """w DPO, with w = exp(a_w + a_l) without gradient and a an answer's mean over tokens of log p(token) - log sum_v p(v)^2.

    Answers that the policy would not give count little, so that other models' answers train it more as its own would.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(wpo(p(-10.0), p(-12.0), p(-11.0), p(-11.0), p(-0.5), p(-0.2)).item(), 6)
    0.297027
    """
    margin = (chosen_logp - chosen_logp_ref) - (rejected_logp - rejected_logp_ref)
    return (chosen_on_policy + rejected_on_policy).exp() * ops.classification(beta * margin, label_smoothing)
