"""Clip bounds that move until rewarded tokens have their share of the update.

Presets: bapo.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import clipped, dual_clipped, ratio

Bound = Annotated[float, Field(gt=0)]
Step = Annotated[float, Field(gt=0)]


@method(
    paper="2510.18927",
    title="BAPO: Stabilizing Off-Policy Reinforcement Learning via Balanced Policy Optimization with Adaptive Clipping",
    checked="official code, 6 cases",
    batch_coupled=True,
    ratio_level="token",
    reduces_to="target 0 is clip",
)
def bapo(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    mask: PerToken,
    weight: PerToken,
    *,
    target: Annotated[float, Field(ge=0)] = 0.5,
    lower: Bound = 0.8,
    lower_most: Bound = 0.95,
    lower_step: Step = 0.05,
    upper: Bound = 1.2,
    upper_most: Bound = 2.0,
    upper_step: Step = 0.1,
    dual: Annotated[float, Field(gt=1)] | None = 3.0,
) -> PerToken:
    """PPO's clipped loss, whose bounds on the ratio rise until what is raised is `target` times what is pushed down.

        p = sum over A >= 0 of min(rho, upper) A;   q = sum over A < 0 of max(rho, lower) |A|

    While p / q < target first `lower` rises by `lower_step` to at most `lower_most`, which leaves out punished tokens that are falling
    already, then `upper` by `upper_step` to at most `upper_most`, which lets rewarded ones rise further. All bounds are of the ratio itself
    (0.8, where `clip` says `low: 0.2`). The sums are over the tokens of the optimizer update. `dual` as for clip. For runs on stale
    rollouts, in which punished tokens outweigh rewarded ones and entropy falls.

    >>> import torch
    >>> rho, A = torch.tensor([[1.5, 0.85, 1.0]]), torch.tensor([[1.0, -1.0, -1.0]]); one = torch.ones(1, 3)
    >>> bapo(rho.log(), rho * 0, A, one.bool(), one).tolist()  # 1.2 / 1.85 is enough
    [[-1.2, 0.85, 1.0]]
    >>> bapo(rho.log(), rho * 0, A, one.bool(), one, target=0.7).tolist()  # lower rises to 0.95, upper to 1.4: 1.4 / 1.95
    [[-1.4, 0.95, 1.0]]
    """
    rho = ratio(logp, logp_old)
    inside = mask & (weight > 0)
    ratios, advantages = rho[inside].detach(), advantage[inside].detach()
    while _balance(ratios, advantages, lower, upper) < target and lower < lower_most:
        lower = min(lower + lower_step, lower_most)
    while _balance(ratios, advantages, lower, upper) < target and upper < upper_most:
        upper = min(upper + upper_step, upper_most)
    return dual_clipped(clipped(rho, advantage, 1 - lower, upper - 1), advantage, dual)


def _balance(ratio: Tensor, advantage: Tensor, lower: float, upper: float) -> float:
    """What is raised over what is pushed down, after the bounds; infinite where nothing is."""
    up = (ratio.clamp(max=upper) * advantage.clamp(min=0)).sum()
    down = (ratio.clamp(min=lower) * -advantage.clamp(max=0)).sum()
    return float(up / down) if down > 0 else float("inf")
