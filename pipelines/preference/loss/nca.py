"""Each answer against noise: the chosen one keeps its probability."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2402.05369",
    title="Noise Contrastive Alignment of Language Models with Explicit Rewards (NCA), for pairs",
    checked="third-party code (trl), 1 case",
)
def nca(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1,
) -> PerPair:  # fmt: skip
    """-log s(r_w) - (log s(-r_w) + log s(-r_l)) / 2, with s(r) = sigmoid(beta r) of an answer's log-ratio.

    The rejected answer always falls. The chosen one rises until s(r_w) = 2/3, so its probability does not fall with the other's, as it
    may under DPO, which sees the difference alone.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(nca(p(-10.0), p(-12.0), p(-11.0), p(-11.0)).item(), 6)
    1.338793
    """
    chosen, rejected = beta * (chosen_logp - chosen_logp_ref), beta * (rejected_logp - rejected_logp_ref)
    return ops.classification(chosen) + (ops.classification(-chosen) + ops.classification(-rejected)) / 2
