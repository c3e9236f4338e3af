"""REINFORCE with a smooth weight of the sequence's ratio."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2602.10693",
    title="VESPO: Variational Sequence-Level Soft Policy Optimization",
    checked="official code, 5 cases",
    zero_gradient_at_zero_advantage=True,
    stops_gradient="the weight is detached",
    ratio_level="sequence",
    reduces_to="on on-policy rollouts it is reinforce",
)
def vespo(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    mask: PerToken,
    *,
    k_pos: Annotated[float, Field(ge=0)] = 2.0,
    lambda_pos: Annotated[float, Field(gt=0)] = 3.0,
    k_neg: Annotated[float, Field(ge=0)] = 3.0,
    lambda_neg: Annotated[float, Field(gt=0)] = 2.0,
) -> PerToken:
    """The weight of a row is 1 where its ratio is 1 and falls to 0 on both sides; no length, no clip.

        W = exp(sum_t (logp - logp_old));   l = -sg(W^k exp(lambda (1 - W))) A logp

    k and lambda are the first two settings where A >= 0, the others where A < 0. W is the product over the row, not a mean: a row
    that is likely under the new policy by a factor of 10 hardly counts. For rollouts that are several updates old (`mini_batches`,
    `staleness`). The paper averages tokens: use `loss_aggregation: token_mean`. log W is clamped to ±20, as each of its terms.

    >>> import torch
    >>> d, m = torch.tensor([[0.25, 0.25]]), torch.ones(1, 2).bool()
    >>> vespo(d, d * 0, torch.ones(1, 2), m)[0, 0].item(), vespo(d, d * 0, -torch.ones(1, 2), m)[0, 0].item()
    (-0.097057, 0.306133)
    """
    log_w = ((logp - logp_old).detach().clamp(-20, 20) * mask).sum(1, keepdim=True).clamp(-20, 20)
    negative = advantage < 0
    k = torch.full_like(advantage, k_pos).masked_fill(negative, k_neg)
    rate = torch.full_like(advantage, lambda_pos).masked_fill(negative, lambda_neg)
    weight = (k * log_w + rate * (1 - log_w.exp())).exp()
    return -weight * advantage * logp * mask
