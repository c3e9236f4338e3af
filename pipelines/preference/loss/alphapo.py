"""SimPO with a reward that is stretched or compressed where an answer is improbable."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops

LARGEST_EXPONENT = 20.0


@method(
    paper="2501.03884",
    title="AlphaPO: Reward Shape Matters for LLM Alignment, eq. 8",
    checked="third-party code (trl), 2 cases",
    reduces_to="simpo for alpha 0",
)
def alphapo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_length: PerPair, rejected_length: PerPair,
    *, alpha: Annotated[float, Field(ge=-10, le=10)] = 0.25, beta: Annotated[float, Field(gt=0)] = 2.0,
    gamma: Annotated[float, Field(ge=0)] = 1.0, label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0,
) -> PerPair:  # fmt: skip
    """-log sigmoid(beta (r_w - r_l) - gamma), with r = (1 - e^(-alpha a)) / alpha of the mean log-probability a.

    alpha > 0 stretches differences between improbable answers, alpha < 0 compresses them. The exponent -alpha a is at most 20, beyond
    which an answer has no gradient (e^88 would not fit into float32).

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> [round(alphapo(p(-8.0), p(-11.0), p(10.0), p(10.0), alpha=a, gamma=0.5).item(), 6) for a in (-0.25, 0.0, 0.25, 0.5)]
    [0.706602, 0.644397, 0.571128, 0.48716]
    """
    chosen, rejected = (
        ops.deformed(ops.per_token(logp, length), alpha, LARGEST_EXPONENT)
        for logp, length in ((chosen_logp, chosen_length), (rejected_logp, rejected_length))
    )
    return ops.classification(beta * (chosen - rejected) - gamma, label_smoothing)
