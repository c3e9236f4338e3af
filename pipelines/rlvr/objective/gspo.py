"""Clipped surrogate with one ratio per sequence."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import clipped, row_mean


@method(
    paper="2507.18071",
    title="Group Sequence Policy Optimization",
    checked="third-party code (verl), 9 cases",
    zero_gradient_at_zero_advantage=True,
    stops_gradient="the row's mean log-ratio is detached, each token brings its own gradient",
    ratio_level="sequence",
    reduces_to="a row of one token is clip",
)
def gspo(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    mask: PerToken,
    *,
    low: Annotated[float, Field(gt=0, le=1)] = 3e-4,
    high: Annotated[float, Field(gt=0)] = 4e-4,
) -> PerToken:
    """Clipped loss with the geometric mean of the row's token ratios as its ratio, in the form that the paper calls GSPO-token.

        log s_i = mean_t (logp - logp_old);   s_it = s_i with the gradient of logp_it
        l = max(-s A, -clip(s, 1 - low, 1 + high) A)

    Where the tokens of a row have one advantage, value and gradient are GSPO's; where they differ (section 4.3), each token's gradient has
    its own. TRL calls the form `gspo_token`; verl's `gspo` is it too.
    Use `loss_aggregation: row_mean`; the paper averages rows, not tokens. The exponent is clamped at 10.

    >>> import torch
    >>> lp, old = torch.tensor([[-1.0, -2.0, -0.5]]), torch.tensor([[-1.2, -1.9, -0.53]])
    >>> m = torch.ones(1, 3).bool()
    >>> gspo(lp, old, torch.ones(1, 3), m)[0, 0].item(), gspo(lp, old, -torch.ones(1, 3), m)[0, 0].item()
    (-1.0004, 1.044286)
    """
    mean = row_mean((logp - logp_old).detach(), mask)[:, None]
    row_ratio = (logp - logp.detach() + mean).clamp(max=10).exp()
    return clipped(row_ratio, advantage, low, high) * mask
