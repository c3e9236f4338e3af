"""Reward for tokens that depend on the context: a divergence from the policy given a masked context, maximised."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2507.06448",
    title="Perception-Aware Policy Optimization (PAPO), on a masked text context",
    checked="paper (formulas; its code was not read, and works on images)",
)
def papo(
    logp: PerToken,
    logp_masked: PerToken,
    *,
    bound: Annotated[float, Field(gt=0)] = 10.0,
    entropy: Annotated[float, Field(ge=0)] = 0.0,
) -> PerToken:
    """-min(k3, bound) - entropy log pi, with k3 = exp(d) - d - 1 and d = log pi(t | masked context) - log pi(t | context).

    k3 estimates KL(pi(. | context) || pi(. | masked)); the masked side carries no gradient. A row without a context contributes
    nothing. The paper's weight is 0.01 to 0.02; its double entropy loss is off by default there too, and of its two terms only the one
    with a gradient is here (`entropy`, relative to the weight). Unbounded, a token that masking makes likelier would pull the loss to
    minus infinity.

    >>> import torch
    >>> logp, masked = torch.tensor([[-0.2, -1.0, -0.5]]), torch.tensor([[-1.2, -1.1, -0.5]])
    >>> round(papo(logp, masked).mean().item(), 6), round(papo(logp, masked, entropy=1.5).mean().item(), 6)
    (-0.124239, 0.725761)
    """
    known = logp_masked.isfinite()
    difference = (torch.where(known, logp_masked, logp.detach()) - logp).clamp(-20, 20)
    divergence = (torch.expm1(difference) - difference).clamp(max=bound)
    return (-divergence - entropy * logp) * known
