"""SFT that moves no token further from where it was than a trust region allows.

No preset uses it.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerTrained


@method(
    paper="2508.17784",
    title="Proximal Supervised Fine-Tuning",
    checked="official code (read; recipe/psft)",
    reduces_to="in the first update of a step, where the ratio is 1, its gradient is cross_entropy's",
)
def psft(
    logp: PerTrained,
    logp_old: PerTrained,
    *,
    low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    high: Annotated[float, Field(gt=0)] = 0.28,
) -> PerTrained:
    """PPO's clipped loss with an advantage of 1 on every token of the data.

        l = -min(rho, clip(rho, 1 - low, 1 + high));   rho = pi(token) / pi(token) before the step

    A token that the step's earlier updates made `1 + high` times as likely gets no gradient from its later ones; below that the gradient is
    that of rho. For an advantage of 1 the lower bound never acts; it is kept because the formula has it. It needs `mini_batches`: the paper
    makes 8 updates of 8 conversations a step.

    >>> import torch
    >>> rho = torch.tensor([1.1, 1.5, 0.5])
    >>> [round(v, 6) for v in psft(rho.log(), torch.zeros(3)).tolist()]
    [-1.1, -1.28, -0.5]
    """
    rho = (logp - logp_old).clamp(-20, 20).exp()
    return -torch.minimum(rho, rho.clamp(1 - low, 1 + high))
