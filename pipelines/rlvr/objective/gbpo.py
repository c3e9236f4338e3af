"""A ratio whose denominator is bounded, so that no clip is needed."""

import torch

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="https://github.com/Kuaishou-OneRec",
    title="OneRec-V2 Technical Report: Gradient-Bounded Policy Optimization",
    checked="paper",
    zero_gradient_at_zero_advantage=True,
    stops_gradient="the bound in the denominator is detached",
    ratio_level="token",
    not_reinforce="bounded by design",
)
def gbpo(logp: PerToken, logp_old: PerToken, advantage: PerToken) -> PerToken:
    """-(p / p') A, with p' = max(p_old, p) for A >= 0 and max(p_old, 1 - p) for A < 0 (no gradient through p').

    No code was released. The report's advantages are 1 and -1, from quantiles of watch time; here those of the recipe.
    The gradient is bounded by that of binary cross-entropy, and every token keeps one. On policy a negative
    token whose probability is below one half is damped: the gradient is not REINFORCE's.

    >>> import torch
    >>> old, p, A = torch.tensor([[0.2, 0.5, 0.01, 0.9]]), torch.tensor([[0.5, 0.2, 0.05, 0.05]]), torch.tensor([[1.0, 1, -1, -1]])
    >>> [round(v, 6) for v in gbpo(p.log(), old.log(), A)[0].tolist()]
    [-1.0, -0.4, 0.052632, 0.052632]
    """
    p, old = logp.clamp(min=-40).exp(), logp_old.exp()
    p_detached = p.detach()
    bound = torch.where(advantage >= 0, torch.maximum(old, p_detached), torch.maximum(old, 1 - p_detached)).clamp(
        min=1e-12
    )
    return -(p / bound) * advantage
