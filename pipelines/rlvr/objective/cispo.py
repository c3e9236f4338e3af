"""REINFORCE with a clipped, detached importance weight."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import ratio


@method(
    paper="2506.13585",
    title="MiniMax-M1: Clipped IS-weight Policy Optimization",
    checked="third-party code (verl), 10 cases",
    zero_gradient_at_zero_advantage=True,
    stops_gradient="the importance weight is detached",
    ratio_level="token",
    reduces_to="on on-policy rollouts it is reinforce",
)
def cispo(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    *,
    low: Annotated[float, Field(gt=0)] | None = None,
    high: Annotated[float, Field(gt=0)] = 4.0,
) -> PerToken:
    """Every token keeps its gradient; only the size of its importance weight is bounded.

        l = -sg(clip(rho, 1 - low, 1 + high)) * A * logp

    The paper sets no lower bound (`low: null`) and tunes the upper one.

    >>> import torch
    >>> lp = torch.tensor([[9.0, 0.5]]).log()
    >>> cispo(lp, torch.zeros(1, 2), torch.ones(1, 2)).tolist()
    [[-10.986, 0.3466]]
    """
    rho = ratio(logp, logp_old).detach()
    rho = rho.clamp(min=0 if low is None else max(0.0, 1 - low), max=1 + high)
    return -rho * advantage * logp
