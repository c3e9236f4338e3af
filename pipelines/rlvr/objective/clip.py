"""PPO's clipped surrogate with two bounds."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import clipped, dual_clipped, ratio


@method(
    paper="1707.06347",
    title="Proximal Policy Optimization; asymmetric bounds as in DAPO (2503.14476)",
    checked="third-party code (verl), 18 cases",
    zero_gradient_at_zero_advantage=True,
    ratio_level="token",
    reduces_to="low = high is PPO; high above low is DAPO's clip-higher; one update per batch is REINFORCE",
)
def clip(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    *,
    low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    high: Annotated[float, Field(gt=0)] = 0.2,
    dual: Annotated[float, Field(gt=1)] | None = None,
) -> PerToken:
    """Pessimistic clipped policy-gradient loss per token.

        l = max(-rho A, -clip(rho, 1 - low, 1 + high) A);   rho = exp(logp - logp_old)

    `dual` bounds the loss of negative advantages at `-dual * A` (dual-clip PPO, 1912.09729; 4 is the two-sided clip of INTELLECT-2).

    >>> import torch
    >>> rho, A = torch.tensor([[1.35, 0.7, 0.7, 4.0]]), torch.tensor([[1.0, 1, -1, -1]])
    >>> clip(rho.log(), torch.zeros(1, 4), A, low=0.2, high=0.28, dual=3.0).tolist()
    [[-1.28, -0.7, 0.8, 3.0]]
    """
    return dual_clipped(clipped(ratio(logp, logp_old), advantage, low, high), advantage, dual)
