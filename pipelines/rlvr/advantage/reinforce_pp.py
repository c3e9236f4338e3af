"""Return-to-go, whitened over the batch's tokens."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.common.estimate import returns_to_go
from pipelines.rlvr.ops import whiten


@method(
    paper="2501.03262",
    title="REINFORCE++",
    checked="third-party code (verl), 13 cases",
    crosses_groups="whitens over all tokens of the batch by design",
)
def reinforce_pp(
    immediate_reward: PerToken,
    scored: PerRow,
    mask: PerToken,
    *,
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0,
) -> PerToken:
    """Discounted return-to-go, whitened over the batch (ddof 1).

        R_t = r_t + gamma R_{t+1};   A = (R - mean) / sqrt(var + 1e-8) over all trained tokens

    with r_t the reward of a turn on its last trained token, the outcome on the row's last, less the divergence penalty in the reward at t:
    a token answers for what is paid and charged from itself on, never for what came before it.

    Discounting counts trained tokens, so the outcome passes undiscounted through tokens of the environment. All rewards equal gives 0. Put
    a KL penalty in the reward with `divergence: {where: reward}`. The authors' own code (OpenRLHF) whitens with the population variance;
    ours, as verl, with ddof 1.

    >>> import torch
    >>> m = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    >>> reinforce_pp(torch.tensor([[0.0, 0, 1], [0, 0, 0]]), torch.ones(2).bool(), m).tolist()
    [[0.7303, 0.7303, 0.7303], [-1.0954, -1.0954, 0.0]]
    """
    trained = mask & scored[:, None]
    return whiten(returns_to_go(immediate_reward, trained, gamma), trained).float()
