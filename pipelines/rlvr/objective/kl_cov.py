"""Policy gradient held back on the tokens that would take most entropy."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import ratio


@method(
    paper="2505.22617",
    title="The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (KL-Cov)",
    checked="official code, 5 cases",
    batch_coupled=True,
    ratio_level="token",
    reduces_to="coef 0 is clip without bounds",
)
def kl_cov(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    mask: PerToken,
    weight: PerToken,
    *,
    share: Annotated[float, Field(gt=0, le=1)] = 0.002,
    coef: Annotated[float, Field(ge=0)] = 1.0,
) -> PerToken:
    """The ratio's loss without a clip, and |logp - logp_old| on the `share` of tokens whose covariance is highest.

        cov_t = (A_t - mean A) (logp_t - mean logp);   l = -rho A + coef |logp - logp_old| on the top max(1, floor(share n)) of the n tokens

    Entropy falls by the covariance of log-probability and advantage, and few tokens carry most of it: likely ones that are rewarded, and
    unlikely ones that are punished. The means are over the tokens of the optimizer update (in the released code, of a forward pass). The
    paper takes 0.002 for 7 billion weights and 0.0002 for 32. For runs whose entropy collapses, where `adaptive_entropy` would act on all
    tokens alike.

    >>> import torch
    >>> lp, old = torch.tensor([[-0.1, -2.0, -3.0]]), torch.tensor([[-0.3, -2.0, -2.5]]); one = torch.ones(1, 3)
    >>> kl_cov(lp, old, torch.tensor([[1.0, 1.0, -1.0]]), one.bool(), one, share=0.4).tolist()  # cov 1.067, -0.2, 1.733
    [[-1.221403, -1.0, 1.106531]]
    """
    inside = mask & (weight > 0)
    surrogate = -ratio(logp, logp_old) * advantage
    a, b = advantage[inside].detach(), logp[inside].detach()
    if a.numel() == 0:
        return surrogate
    covariance = (a - a.mean()) * (b - b.mean())
    highest = covariance.topk(max(1, int(a.numel() * share))).indices
    held = torch.zeros_like(a).index_fill(0, highest, coef)
    return surrogate + torch.zeros_like(surrogate).masked_scatter(inside, held) * (logp - logp_old).abs()
