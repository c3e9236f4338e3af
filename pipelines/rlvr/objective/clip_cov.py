"""Clipped policy gradient that leaves out some of the tokens that would take most entropy."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import clipped, ratio

FIRST, SECOND = -4658895280553007687, -7723592293110705685
"""Odd factors of splitmix64 (0xBF58476D1CE4E5B9 and 0x94D049BB133111EB as int64), which spread every bit of a number."""


@method(
    paper="2505.22617",
    title="The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (Clip-Cov)",
    checked="official code, 5 cases",
    batch_coupled=True,
    ratio_level="token",
    not_reinforce="tokens with a high covariance have no gradient",
    reduces_to="most = least is clip",
)
def clip_cov(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    mask: PerToken,
    weight: PerToken,
    token: PerToken,
    problem: PerRow,
    step: int,
    *,
    share: Annotated[float, Field(gt=0, le=1)] = 0.0002,
    least: float = 1.0,
    most: float = 5.0,
    low: Annotated[float, Field(gt=0, le=1)] = 1.0,
    high: Annotated[float, Field(gt=0)] = 1.0,
) -> PerToken:
    """PPO's clipped loss, 0 on max(1, floor(share n)) of the n tokens, drawn among those with `least` < cov < `most` that are not clipped.

        cov_t = (A_t - mean A) (logp_t - mean logp)

    Entropy falls by the covariance of log-probability and advantage (`kl_cov` of the same paper holds such tokens back). The means
    are over the tokens of the optimizer update (in the released code, of a forward pass), and so is the draw. It hashes the step, the
    problem and the row so far, so that a restart, another order of the rows or more processes draw the same. Where no token is in the
    range none is left out. For runs whose entropy collapses.

    >>> import torch
    >>> lp, A, one = torch.tensor([[-0.1, -4.1, -3.6]]), torch.tensor([[1.0, -1.0, 0.0]]), torch.ones(1, 3)
    >>> clip_cov(lp, lp, A, one.bool(), one, one.long(), torch.zeros(1).long(), 0, share=1.0).tolist()  # cov 2.5, 1.5, 0
    [[0.0, 0.0, 0.0]]
    >>> clip_cov(lp, lp, A, one.bool(), one, one.long(), torch.zeros(1).long(), 0, share=1.0, least=2.0).tolist()
    [[0.0, 1.0, 0.0]]
    """
    rho = ratio(logp, logp_old)
    loss = clipped(rho, advantage, low, high)
    inside = mask & (weight > 0)
    n = int(inside.sum())
    if n == 0:
        return loss
    a, b = advantage.detach(), logp.detach()
    covariance = (a - a[inside].mean()) * (b - b[inside].mean())
    is_clipped = (loss > -rho * advantage).detach()
    candidates = inside & (covariance > least) & (covariance < most) & ~is_clipped
    order = _hash(step, problem, token)[candidates].argsort(stable=True)
    left_out = torch.zeros_like(order, dtype=torch.bool)
    left_out[order[: max(1, int(n * share))]] = True
    return loss.masked_fill(torch.zeros_like(inside).masked_scatter(candidates, left_out), 0.0)


def _hash(step: int, problem: Tensor, token: Tensor) -> Tensor:
    """A number of each token that looks random, int64 [B, T]; equal for rows that are equal so far."""
    place = torch.arange(token.shape[1], device=token.device)
    so_far = _spread(token + (place << 32)).cumsum(1)
    return _spread(so_far + _spread(problem + step)[:, None])


def _spread(x: Tensor) -> Tensor:
    x = (x ^ (x >> 30)) * FIRST
    x = (x ^ (x >> 27)) * SECOND
    return x ^ (x >> 31)
