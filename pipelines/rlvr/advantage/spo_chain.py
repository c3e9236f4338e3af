"""Every segment gets the rise in Monte-Carlo value across it."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import next_place


@method(
    paper="2505.23564",
    title="Segment Policy Optimization (chain)",
    checked="official code, 5 cases",
    group_of_one="compares with continuations of its own prefix, not with a group",
    zero_variance_groups="learns",
)
def spo_chain(
    reward: PerRow,
    mc_value: PerToken,
    mask: PerToken,
    scored: PerRow,
    logp_old: PerToken,
    token_penalty: PerToken,
    *,
    certain: Annotated[float, Field(gt=0, le=1)] = 0.9,
) -> tuple[PerToken, PerToken]:
    """A segment from one valued token to the next gets V(next) - V(its start); the last one reward - V(its start).

    V is the Monte-Carlo value, the mean score of new continuations (`rollout: chain`), less what a divergence in the reward charged the
    tokens before it: a segment answers for its own charges. Tokens before the first value get 0. Tokens that the
    policy chose with a probability of `certain` or more are not decisions: they get 0 and leave the loss. `credit: whiten` whitens what is
    left, as the released trainer does.

    >>> import torch
    >>> p = torch.tensor([[0.95, 0.5, 0.99, 0.6, 0.3, 0.8, 0.97]]); V = torch.full((1, 7), torch.nan)
    >>> V[0, 1], V[0, 4] = 4 / 9, 6 / 9
    >>> A, share = spo_chain(torch.ones(1), V, p > 0, torch.ones(1).bool(), p.log(), p * 0)
    >>> [round(v, 6) for v in A[0].tolist()], share.tolist()
    ([0.0, 0.222222, 0.0, 0.222222, 0.333333, 0.333333, 0.0], [[0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]])
    """
    width = mask.shape[1]
    position = torch.arange(width).expand_as(mask)
    valued = mask & ~mc_value.isnan()
    charged = token_penalty.double() * mask
    value = mc_value.nan_to_num(0.0).double() - (charged.cumsum(1) - charged)
    start = torch.where(valued, position, -1).cummax(1).values
    next_valued = next_place(valued)
    end_value = torch.where(
        next_valued < width, value.gather(1, next_valued.clamp(max=width - 1)), reward.double()[:, None]
    )
    value_gain = (end_value - value.gather(1, start.clamp(min=0))) * (start >= 0)
    uncertain = logp_old < torch.tensor(certain).log() if certain < 1 else torch.ones_like(mask)
    kept = mask & scored[:, None] & uncertain
    return (value_gain * kept).to(reward.dtype), kept.to(reward.dtype)
