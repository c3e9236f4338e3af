"""Clipped surrogate of the geometric mean of clipped token ratios."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import row_mean


@method(
    paper="2507.20673",
    title="Geometric-Mean Policy Optimization",
    checked="official code, 5 cases",
    zero_gradient_at_zero_advantage=True,
    stops_gradient="the row's mean log-ratio is detached, each token brings its own gradient",
    ratio_level="sequence",
    reduces_to="a row of one token is clip with the bounds exp(-low) and exp(high); gspo clips after the mean, this before",
)
def gmpo(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    mask: PerToken,
    *,
    low: Annotated[float, Field(gt=0)] = 0.4,
    high: Annotated[float, Field(gt=0)] = 0.4,
) -> PerToken:
    """Each token's log-ratio is clipped on the side that its advantage pushes to; the row's ratio is the geometric mean of what is left.

        d = logp - logp_old;   c = min(d, high) where A > 0, max(d, -low) where A < 0
        s = exp(mean_t c);   l = -s A

    `low` and `high` bound the log-ratio, exp(-0.4) to exp(0.4) in the paper, wider than other clips: one token moves the mean little.
    A clipped token has no gradient and still counts in the mean. For long answers whose rare tokens have extreme ratios. Use
    `loss_aggregation: row_mean`. Where the advantages of a row differ, which the paper leaves open, each token's gradient has its own.
    The mean is clamped at 10.

    >>> import torch
    >>> d, m = torch.tensor([[1.0, 0.2, -0.6]]), torch.ones(1, 3).bool()
    >>> gmpo(d, d * 0, torch.ones(1, 3), m)[0, 0].item(), gmpo(d, d * 0, -torch.ones(1, 3), m)[0, 0].item()
    (-1.0, 1.305605)
    """
    log_ratio = logp - logp_old
    upper, lower = log_ratio.clamp(max=high), log_ratio.clamp(min=-low)
    clipped = torch.where(advantage > 0, upper, torch.where(advantage < 0, lower, log_ratio))
    mean = row_mean(clipped.detach(), mask)[:, None]
    return -(clipped - clipped.detach() + mean.clamp(max=10)).exp() * advantage * mask
