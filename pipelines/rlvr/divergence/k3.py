"""The low-variance, non-negative estimator of the KL to the reference."""

import torch

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2402.03300",
    title="DeepSeekMath, eq. 4; Approximating KL Divergence",
    checked="third-party code (verl), 5 cases",
    legal_in=("loss", "reward"),
    couples="row",
)
def k3(logp: PerToken, logp_ref: PerToken) -> PerToken:
    """exp(d) - d - 1 with d = logp_ref - logp (clamped to ±20): never negative, 0 where the two agree.

    As a loss its gradient on samples of the policy is, on average, that of the forward KL(reference, policy); GRPO uses it. verl clamps
    the value to 10, ours only the log-ratio, so tokens far below the reference keep their gradient.

    >>> import torch
    >>> k3(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])).tolist()
    [[0.1065, 0.7183]]
    """
    d = (logp_ref - logp).clamp(-20, 20)
    return torch.expm1(d) - d
