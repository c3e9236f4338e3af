"""PPO's clip on this step's rows, an upper bound alone on the step before's."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import clipped, ratio


@method(
    paper="https://github.com/JacckMa/pipo_verl",
    title="Policy Improvement Reinforcement Learning (PIPO)",
    checked="official code, 6 cases",
    zero_gradient_at_zero_advantage=True,
    reduces_to="without replayed rows it is clip",
)
def pipo(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    replayed: PerRow,
    *,
    low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    high: Annotated[float, Field(gt=0)] = 0.2,
) -> PerToken:
    """max(-rho A, -clip(rho) A) on the step's own rows; -min(rho, 1 + high) A on replayed ones, whatever the sign of A.

    >>> import torch
    >>> rho, A = torch.tensor([[0.5, 2.0]] * 2), torch.tensor([[-1.0, 1.0]] * 2)
    >>> pipo(rho.log(), rho * 0, A, torch.tensor([False, True])).tolist()
    [[0.8, -1.2], [0.5, -1.2]]
    """
    rho = ratio(logp, logp_old)
    step_loss = clipped(rho, advantage, low, high)
    return torch.where(replayed[:, None], -rho.clamp(max=1 + high) * advantage, step_loss)
