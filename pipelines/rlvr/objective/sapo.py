"""A soft gate in place of the clip."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import ratio


@method(
    paper="2511.20347",
    title="Soft Adaptive Policy Optimization",
    checked="third-party code (verl), 5 cases",
    zero_gradient_at_zero_advantage=True,
    ratio_level="token",
    reduces_to="one update per batch is REINFORCE; as both temperatures go to 0, the ratio without a clip",
)
def sapo(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    *,
    tau_pos: Annotated[float, Field(gt=0)] = 1.0,
    tau_neg: Annotated[float, Field(gt=0)] = 1.05,
) -> PerToken:
    """The ratio goes through a sigmoid, so a token far from the old policy loses its gradient smoothly, not at a bound.

        l = -A (4 / tau) sigmoid(tau (rho - 1));   tau = tau_pos where A > 0, else tau_neg

    The gradient is that of rho A times 4 p (1 - p), p the sigmoid: 1 at rho = 1, and smaller on both sides. A higher `tau_neg` lets tokens
    with a negative advantage fade sooner. For runs with several updates a step in which the share of clipped tokens is high. The paper
    averages rows: use `loss_aggregation: row_mean`.

    >>> import torch
    >>> rho, A = torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([[1.0, 1.0, -1.0]])
    >>> sapo(rho.log(), torch.zeros(1, 3), A).tolist()
    [[-2.0, -2.924234, 2.822]]
    """
    tau = torch.full_like(advantage, tau_neg).masked_fill(advantage > 0, tau_pos)
    return -advantage * (4 / tau) * (tau * (ratio(logp, logp_old) - 1)).sigmoid()
