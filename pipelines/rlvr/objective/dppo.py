"""A mask where the policy's divergence from the old one is large, in place of the clip of the ratio."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import ratio


def _divergence(logp: Tensor, logp_old: Tensor, of: str) -> Tensor:
    """How far the token's own probability has moved, in the shape of the inputs: |p - p_old|, or KL of "this token or another" in nats."""
    p, old = logp.exp(), logp_old.exp()
    if of == "tv":
        return (p - old).abs()
    return old * (logp_old - logp) + (1 - old) * ((1 - old + 1e-8) / (1 - p + 1e-8)).log()


@method(
    paper="2602.04879",
    title="Rethinking the Trust Region in LLM Reinforcement Learning: Divergence Proximal Policy Optimization",
    checked="third-party code (verl; written there by the authors), 10 cases",
    zero_gradient_at_zero_advantage=True,
    stops_gradient="the importance weight and the mask are detached",
    ratio_level="token",
    reduces_to="on on-policy rollouts it is reinforce; with a large low and high it is cispo",
)
def dppo(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    *,
    divergence: Literal["tv", "kl"] = "tv",
    low: Annotated[float, Field(gt=0)] = 0.15,
    high: Annotated[float, Field(gt=0)] = 0.15,
    largest: Annotated[float, Field(ge=1)] = 20.0,
) -> PerToken:
    """A token that has already moved too far the way its advantage pushes has no gradient; how far is said in probabilities, not ratios.

        l = -M sg(min(rho, largest)) A logp;   M = 0 where D > high, p > p_old and A > 0, and where D > low, p < p_old and A <= 0, else 1
        D = |p - p_old| (tv, eq. 13), or p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)) (kl, eq. 14)

    A ratio of 2 moves a rare token by nothing and a frequent one by much: PPO's clip stops the first too soon and the second too late. For
    large vocabularies and samplers whose probabilities of rare tokens are noisy. The paper takes 0.15 for tv and 0.05 for kl. Its forms
    over the top-k tokens of the distribution are left out: it reports no benefit from them.

    >>> import torch
    >>> p, old, A = torch.tensor([[0.8, 0.02, 0.2]]), torch.tensor([[0.5, 0.01, 0.5]]), torch.tensor([[1.0, 1.0, -1.0]])
    >>> dppo(p.log(), old.log(), A).tolist()
    [[0.0, 7.824046, -0.0]]
    >>> dppo(p.log(), old.log(), A, divergence="kl", low=0.2, high=0.3).tolist()  # 0.2231, 0.003, 0.2231
    [[0.35703, 7.824046, -0.0]]
    """
    new = logp.detach()
    moved = _divergence(new, logp_old, divergence)
    too_far = torch.where(advantage > 0, (moved > high) & (new > logp_old), (moved > low) & (new < logp_old))
    return -ratio(new, logp_old).clamp(max=largest) * ~too_far * advantage * logp
