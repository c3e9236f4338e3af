"""DPO with less weight on what the longer answer of a pair has beyond the shorter one's length."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2409.06411",
    title="Length Desensitization in Direct Preference Optimization (LD-DPO), eq. 10",
    checked="third-party code (trl), 1 case",
    reduces_to="dpo for alpha 1",
)
def ld_dpo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    chosen_logp_head: PerPair, rejected_logp_head: PerPair, chosen_logp_head_ref: PerPair, rejected_logp_head_ref: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, alpha: Annotated[float, Field(ge=0, le=1)] = 0.5,
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0,
) -> PerPair:  # fmt: skip
    """DPO of log-probabilities head + alpha * (whole - head), where the head has as many tokens as the pair's shorter answer.

    alpha 0 compares answers of one length. DPO's gradient is otherwise the larger the longer an answer is, which teaches verbosity.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> pair = p(-10.0), p(-12.0), p(-11.0), p(-11.0), p(-10.0), p(-6.0), p(-11.0), p(-5.5)
    >>> [round(ld_dpo(*pair, alpha=a).item(), 6) for a in (0.0, 0.5, 1.0)]
    [0.620957, 0.60947, 0.598139]
    """

    def ratio(logp: Tensor, head: Tensor, logp_ref: Tensor, head_ref: Tensor) -> Tensor:
        return (1 - alpha) * (head - head_ref) + alpha * (logp - logp_ref)

    chosen = ratio(chosen_logp, chosen_logp_head, chosen_logp_ref, chosen_logp_head_ref)
    rejected = ratio(rejected_logp, rejected_logp_head, rejected_logp_ref, rejected_logp_head_ref)
    return ops.classification(beta * (chosen - rejected), label_smoothing)
