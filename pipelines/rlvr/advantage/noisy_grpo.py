"""Reward and the order of noise levels, fused by how much the reward tells apart."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_std, standardised


@method(
    paper="2510.21122",
    title="NoisyGRPO: Incentivizing Multimodal CoT Reasoning via Noise Injection and Bayesian Estimation (its advantage)",
    checked="official code, 5 cases",
    zero_variance_groups="learns",
    reduces_to="with equal noise in a group it is grpo, scaled alike",
)
def noisy_grpo(
    reward: PerRow,
    noise: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    alpha: Annotated[float, Field(gt=0)] = 0.01,
    variance: Annotated[float, Field(ge=0)] = 0.1,
    eps: Annotated[float, Field(gt=0)] = 1e-4,
) -> PerRow:
    """z-scores of the reward, corrected by the order of the noise: a cleaner prompt should give the better answer.

        P = alpha / (std(r)^2 + alpha);   K = P / (variance + P);   x = z(r) + K (z(1 - noise) - z(r));   A = z(x)

    z subtracts the group's mean and divides by its deviation (ddof 1) plus eps. The reward's is the estimate, of variance P, and the
    noise's the observation, of `variance`: the less the rewards of a group differ, the more the noise decides. Where they are all equal, K
    is 1 / (1 + variance) and A the order of the noise alone; so do not use a filter that drops such groups. `alpha` 0.01 is that of the
    released scripts, 0.1 their code's default. The rows come from `rollout: noisy`.

    >>> import torch
    >>> g, yes, noise = torch.zeros(4).long(), torch.ones(4).bool(), torch.tensor([0.0, 0.3, 0.6, 0.9])
    >>> [round(v, 5) for v in noisy_grpo(torch.tensor([1.0, 0, 1, 0]), noise, g, yes).tolist()]
    [1.03828, -0.64933, 0.64933, -1.03828]
    >>> [round(v, 5) for v in noisy_grpo(torch.zeros(4), noise, g, yes).tolist()]
    [1.16177, 0.38726, -0.38726, -1.16177]
    """
    uncertainty = alpha / (group_std(reward, group, scored) ** 2 + alpha)
    gain = uncertainty / (variance + uncertainty)
    own = standardised(reward, group, scored, eps=eps)
    expected = standardised(1 - noise.double(), group, scored, eps=eps)
    return standardised(own + gain * (expected - own), group, scored, eps=eps).float()
