"""DPO under another divergence from the reference than the reverse KL."""

from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops

LARGEST_EXPONENT = 40.0


@method(
    paper="2309.16240",
    title="Beyond Reverse KL: Generalizing Direct Preference Optimization with Diverse Divergence Constraints (f-DPO), eq. 10",
    checked="third-party code (trl), 3 cases",
    reduces_to="dpo for alpha 0",
)
def f_dpo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, divergence: Literal["alpha", "jensen_shannon"] = "alpha",
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5, label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0,
) -> PerPair:  # fmt: skip
    """-log sigmoid(beta (f'(u_w) - f'(u_l))), with u = pi / pi_ref of an answer and f the divergence's function.

    `alpha`: f'(u) = (1 - u^(-alpha)) / alpha, which is the forward KL for alpha 1 and DPO's reverse KL for alpha 0 (TRL's coefficient is
    1 - alpha). `jensen_shannon`: f'(u) = log(2u / (1 + u)). Exponents are at most 40, beyond which an answer has no gradient.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> pair = p(-10.0), p(-12.0), p(-11.0), p(-11.0)
    >>> [round(f_dpo(*pair, alpha=a).item(), 6) for a in (0.0, 0.5, 1.0)], round(f_dpo(*pair, divergence="jensen_shannon").item(), 6)
    ([0.598139, 0.594349, 0.582517], 0.644397)
    """

    def slope(log_ratio: Tensor) -> Tensor:
        if divergence == "jensen_shannon":
            return F.logsigmoid(log_ratio)
        return ops.deformed(log_ratio, alpha, LARGEST_EXPONENT)

    margin = slope(chosen_logp - chosen_logp_ref) - slope(rejected_logp - rejected_logp_ref)
    return ops.classification(beta * margin, label_smoothing)
