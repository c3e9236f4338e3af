"""Row rewards in proportion to mean entropy."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_size, group_sum, homogeneous, row_mean, standardised


@method(
    paper="2508.04349",
    title="GTPO and GRPO-S: Token and Sequence-Level Reward Shaping with Policy Entropy",
    checked="third-party code (pixas/Miner), 5 cases",
    zero_variance_groups="learns",
    reduces_to="share 0 is grpo on rewards of 1 and -1, scaled by the deviation",
)
def grpo_s(
    correct: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    entropy_old: PerToken,
    *,
    base: Annotated[float, Field(ge=0)] = 1.0,
    share: Annotated[float, Field(ge=0)] = 0.1,
    normalise: Literal["together", "apart", "none"] = "together",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """The mean entropy H of a row distributes a reward among the correct rows of its group, and 1/H among the incorrect ones.

        correct: r = base + share * n H / sum H;   incorrect: r = -(base + share * m (1/H) / sum(1/H))

    `together` takes zero mean and unit deviation (ddof 1, `eps` added) over the group. `apart` does so separately over its
    correct and over its incorrect rows, as GTPO does with tokens: what is left is entropy alone, the outcome drops out
    (and in the bake-off the policy with it).

    >>> import torch
    >>> H, m = torch.tensor([[2.0], [1.0], [2.0], [1.0]]), torch.ones(4, 1).bool()
    >>> correct, g = torch.tensor([1.0, 1, 0, 0]), torch.zeros(4).long()
    >>> [round(v, 6) for v in grpo_s(correct, g, m[:, 0], m, H, normalise="none").tolist()]
    [1.133333, 1.066667, -1.066667, -1.133333]
    """
    mean_entropy = row_mean(entropy_old.double(), mask)
    is_correct = correct > 0
    outcome_group = group * 2 + is_correct.long()
    entropy_weight = torch.where(is_correct, mean_entropy, 1 / (mean_entropy + eps)) * scored
    entropy_share = (
        group_size(outcome_group, scored) * entropy_weight / group_sum(entropy_weight, outcome_group).clamp(min=1e-300)
    )
    shaped = torch.where(is_correct, 1.0, -1.0) * (base + share * entropy_share) * scored
    if normalise == "none":
        return shaped.float()
    normalised_over = outcome_group if normalise == "apart" else group
    advantage = standardised(shaped, normalised_over, scored, eps=eps)
    return advantage.masked_fill(homogeneous(shaped, normalised_over, scored), 0.0).float()
