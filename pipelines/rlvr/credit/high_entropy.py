"""The tokens where the policy was least sure, and no others."""

import math
from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(
    paper="2506.01939",
    title="Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective RL for LLM Reasoning",
    checked="third-party code (TRL), 5 cases",
    crosses_groups="the quantile is that of the batch's tokens",
    reduces_to="share: 1 changes nothing",
)
def high_entropy(
    advantage: PerToken,
    entropy_old: PerToken,
    mask: PerToken,
    in_loss: PerRow,
    *,
    share: Annotated[float, Field(gt=0, le=1)] = 0.2,
) -> PerToken:
    """A on the `share` of the batch's tokens in the loss whose entropy was highest when they were drawn, 0 on the others.

        A_t = A_t where H_t >= the (1 - share) quantile of H over the step's tokens in the loss

    The others stay in the denominators, and a KL still holds them. The quantile is that of the step's rollouts, from the sampler; TRL takes
    that of the policy in each pass. For long reasoning of models of 8 billion weights and more, where the paper finds that forking tokens
    alone teach; `entropy_gate` has thresholds in nats instead.

    >>> import torch
    >>> H, one = torch.tensor([[1.9, 0.3, 1.5, 0.2, 0.1]]), torch.ones(1, 5)
    >>> high_entropy(one, H, one.bool(), one[:, 0].bool(), share=0.4)[0].tolist()
    [1.0, 0.0, 1.0, 0.0, 0.0]
    """
    used = entropy_old[mask & in_loss[:, None]]
    if used.numel() == 0:
        return advantage
    place = math.ceil((1 - share) * (used.numel() - 1) - 1e-9)  # of the quantile, from 0
    return torch.where(entropy_old >= used.kthvalue(place + 1).values, advantage, 0.0)
