"""Clipped tokens keep a bounded gradient.

Presets: ce_gppo.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import dual_clipped, ratio


@method(
    paper="2509.20712",
    title="CE-GPPO: Coordinating Entropy via Gradient-Preserving Clipping Policy Optimization",
    checked="official code, 5 cases",
    zero_gradient_at_zero_advantage=True,
    stops_gradient="the scale of a clipped token is detached",
    ratio_level="token",
    reduces_to="beta_low = beta_high = 0 has the gradient of clip",
)
def ce_gppo(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    *,
    low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    high: Annotated[float, Field(gt=0)] = 0.2,
    beta_low: Annotated[float, Field(ge=0)] = 0.75,
    beta_high: Annotated[float, Field(ge=0)] = 1.0,
    dual: Annotated[float, Field(gt=1)] | None = 10.0,
) -> PerToken:
    """PPO's surrogate in which a clipped token has the gradient of a token at the bound, times beta, instead of none.

        l = -beta_low (1 - low) rho / sg(rho) A    where rho < 1 - low and A < 0
        l = -beta_high (1 + high) rho / sg(rho) A  where rho > 1 + high and A > 0;   l = -rho A elsewhere

    `beta_low` (the paper's beta_1) lets unlikely punished tokens go on falling, which takes entropy; `beta_high` (beta_2) lets unlikely
    rewarded ones go on rising, which keeps it. The paper takes 0.5 and 1 for 1.5 billion weights, 0.75 and 1 for 7. `dual` as for clip.
    For runs with many updates a step, in which clipping hides a large share of tokens.

    >>> import torch
    >>> rho, A = torch.tensor([[0.5, 1.5, 1.5]]), torch.tensor([[-1.0, 1.0, -1.0]])
    >>> ce_gppo(rho.log(), torch.zeros(1, 3), A).tolist()
    [[0.6, -1.2, 1.5]]
    """
    rho = ratio(logp, logp_old)
    below, above = (rho < 1 - low) & (advantage < 0), (rho > 1 + high) & (advantage > 0)
    own = rho / rho.detach()
    kept = torch.where(below, beta_low * (1 - low) * own, torch.where(above, beta_high * (1 + high) * own, rho))
    return dual_clipped(-kept * advantage, advantage, dual)
