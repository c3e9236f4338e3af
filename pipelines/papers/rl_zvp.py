"""GRPO that also learns from zero-variance groups, through token entropies.

Presets: rl_zvp.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_mean, group_size, group_std, homogeneous, to_tokens


@method(
    paper="2509.21880",
    title="No Prompt Left Behind: Exploiting Zero-Variance Prompts (RL-ZVP)",
    checked="paper (eq. 5)",
    couples="group",
    zero_variance_groups="learns",
)
def rl_zvp(
    reward: PerRow,
    correct: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    entropy_old: PerToken,
    *,
    alpha: Annotated[float, Field(ge=0)] = 0.1,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """Mixed groups as in GRPO; others by the entropy H of each token's distribution.

        all correct: A_t = alpha H_t;   all incorrect: A_t = -alpha (max H of the row - H_t)

    Correctness, not the shaped reward, decides whether a group is homogeneous. A group of one gets 0: it would
    always count as homogeneous. Do not combine it with `filter: mixed`, which removes these groups.

    >>> import torch
    >>> H, one = torch.tensor([[0.1, 1.2, 0.5]] * 2), torch.ones(2)
    >>> zvp = lambda r: rl_zvp(r, r, torch.zeros(2).long(), one.bool(), torch.ones(2, 3).bool(), H)[0].tolist()
    >>> zvp(one), zvp(one * 0)
    ([0.01, 0.12, 0.05], [-0.11, 0.0, -0.07])
    """
    grpo = (reward - group_mean(reward, group, scored)) * scored / (group_std(reward, group, scored) + eps)
    zero_variance = homogeneous(correct, group, scored) & (group_size(group, scored) > 1) & scored
    largest_entropy = entropy_old.masked_fill(~mask, float("-inf")).amax(1, keepdim=True)
    largest_entropy = torch.where(largest_entropy.isfinite(), largest_entropy, torch.zeros_like(largest_entropy))
    signed_entropy = torch.where(correct[:, None] > 0, entropy_old, entropy_old - largest_entropy)
    return torch.where(zero_variance[:, None], alpha * signed_entropy, to_tokens(grpo, mask)) * mask
