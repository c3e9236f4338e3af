"""Rewarded tokens are weighed by the inverse of their ratio.

Presets: asymmetric_is.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import ratio


@method(
    paper="2510.06062",
    title="ASPO: Asymmetric Importance Sampling Policy Optimization (the importance flip)",
    checked="official code, 5 cases",
    zero_gradient_at_zero_advantage=True,
    stops_gradient="the weight of a rewarded token, and of one beyond `dual`, is detached",
    ratio_level="token",
)
def asymmetric_is(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    *,
    low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    high: Annotated[float, Field(gt=0)] = 0.2,
    dual: Annotated[float, Field(gt=1)] = 3.0,
) -> PerToken:
    """PPO's clips, with the gradient of a rewarded token weighed by 1 / rho instead of rho, and no weight above `dual`.

        A > 0: gradient -A min(1 / rho, dual) of logp where rho < 1 + high, else none
        A < 0: gradient -A min(rho, dual) of logp where rho > 1 - low, else none

    A ratio raises tokens that have become likely most and those that lag behind least; the flip turns that round, and entropy and length
    last longer. `dual` keeps the gradient beyond its bound, where dual-clip PPO has none. The value of the loss says nothing: beyond `dual`
    it is that of the released code, dual A logp. With one update a step it is `clip`. Not the catalogue's `aspo`, which is another paper.
    For runs with many updates a step whose entropy falls.

    >>> import torch
    >>> rho = torch.tensor([[0.25, 0.5, 1.5, 0.5, 1.1, 4.0]]).requires_grad_()
    >>> loss = asymmetric_is(rho.log(), torch.zeros(1, 6), torch.tensor([[1.0, 1.0, 1.0, -1.0, -1.0, -1.0]]))
    >>> (torch.autograd.grad(loss.sum(), rho)[0] * rho).tolist()  # the gradients by logp
    [[-3.0, -2.0, 0.0, 0.0, 1.1, 3.0]]
    """
    rho = ratio(logp, logp_old)
    lowered, raised = rho.clamp(min=1 - low), rho.clamp(max=1 + high)
    flipped = 1 / raised.detach()
    down = torch.where(lowered > dual, dual * logp, lowered)
    up = torch.where(flipped > dual, dual * logp, raised * flipped * flipped)
    return -advantage * torch.where(advantage < 0, down, up)
