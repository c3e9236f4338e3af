"""The reverse KL to the preferences' distribution, in place of DPO's forward one."""

import math
from typing import Annotated

import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair


@method(
    paper="2402.00856",
    title="Towards Efficient Exact Optimization of Language Model Alignment (EXO), eq. 16",
    checked="third-party code (trl), 1 case",
)
def exo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, label_smoothing: Annotated[float, Field(gt=0, lt=0.5)] = 1e-3,
) -> PerPair:  # fmt: skip
    """KL(Bern(sigmoid(beta d)) || Bern(1 - e)), with d as in `dpo` and e the `label_smoothing`; 0 where beta d = log((1 - e) / e).

    DPO with label smoothing is the converse KL, which covers both answers where the policy cannot fit; this one seeks the better one.
    Beyond its target a pair is pulled back.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(exo(p(-10.0), p(-12.0), p(-11.0), p(-11.0), label_smoothing=0.1).item(), 6)
    0.406304
    """
    logit = beta * ((chosen_logp - chosen_logp_ref) - (rejected_logp - rejected_logp_ref))
    up, down = F.logsigmoid(logit), F.logsigmoid(-logit)
    return logit.sigmoid() * (up - math.log1p(-label_smoothing)) + (-logit).sigmoid() * (
        down - math.log(label_smoothing)
    )
