"""GTPO and GRPO-S: Token and Sequence-Level Reward Shaping with Policy Entropy.

arXiv 2508.04349. Presets: grpo_s, gtpo. Parts: grpo_s (advantage), gtpo (advantage).

Row rewards in proportion to mean entropy.

Token rewards in proportion to entropy, correct and incorrect rows normalised separately.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_index, group_size, group_sum, homogeneous, row_mean, standardised


@method(
    paper="2508.04349",
    title="GTPO and GRPO-S: Token and Sequence-Level Reward Shaping with Policy Entropy",
    checked="third-party code (pixas/Miner), 5 cases",
    couples="group",
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


@method(
    paper="2508.04349",
    title="GTPO and GRPO-S: Token and Sequence-Level Reward Shaping with Policy Entropy",
    checked="third-party code (teilomillet/textpolicy), 5 cases",
    couples="group",
    group_of_one="a row's tokens are compared with one another",
    zero_variance_groups="learns",
)
def gtpo(
    correct: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    entropy_old: PerToken,
    *,
    base: Annotated[float, Field(ge=0)] = 1.0,
    share: Annotated[float, Field(ge=0)] = 0.1,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """A reward is distributed by entropy among the rows of a group that have a token at a position.

        correct: r_t = base + share * d_t H_t / sum H;   incorrect: r_t = -(base + share * h_t (1/H_t) / sum(1/H))

    with d_t, h_t the correct and the incorrect rows active at position t of the completion. The tokens of the group's correct
    rows, and those of its incorrect rows, are normalised separately (population deviation); equal rewards give 0.

    >>> import torch
    >>> H = torch.tensor([[3.0, 1, 0], [1, 1, 2]]); m = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()
    >>> g, yes = torch.zeros(2).long(), torch.ones(2).bool()
    >>> [[round(v, 4) for v in r] for r in gtpo(torch.ones(2), g, yes, m, H).tolist()]
    [[1.5811, 0.0, 0.0], [-1.5811, 0.0, 0.0]]
    """
    raw = shaped_reward(correct, group, scored, mask, entropy_old, base=base, share=share, eps=eps)
    index, groups = group_index(group)
    return _normalised(raw, index * 2 + (correct > 0).long(), mask & scored[:, None], 2 * groups).float()


def shaped_reward(
    correct: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    entropy_old: PerToken,
    *,
    base: float,
    share: float,
    eps: float,
) -> PerToken:
    """The rewards of the tokens before they are normalised, float64 [B, T]."""
    trained = mask & scored[:, None]
    first_token = mask.long().argmax(1, keepdim=True)
    position = (torch.arange(mask.shape[1]) - first_token).clamp(min=0)
    index, groups = group_index(group)
    is_correct = (correct > 0)[:, None]
    outcome_group = index * 2 + is_correct[:, 0].long()
    entropy = entropy_old.double().clamp(min=eps)
    entropy_weight = torch.where(is_correct, entropy, 1 / entropy) * trained
    cell = outcome_group[:, None] * mask.shape[1] + position
    cells = torch.zeros(2 * groups * mask.shape[1], dtype=torch.float64)
    weight_sum = cells.index_add(0, cell.flatten(), entropy_weight.flatten())[cell]
    active = cells.index_add(0, cell.flatten(), trained.double().flatten())[cell]
    raw = base + share * active * entropy_weight / weight_sum.clamp(min=1e-300)
    return torch.where(is_correct, raw, -raw) * trained


def _normalised(raw: torch.Tensor, side: torch.Tensor, trained: torch.Tensor, sides: int) -> torch.Tensor:
    """Zero mean and unit deviation over the used tokens of each side; 0 where they are all equal."""

    def per_side(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(sides, dtype=torch.float64).index_add(0, side, (x * trained).sum(1))[side][:, None]

    count = per_side(torch.ones_like(raw)).clamp(min=1)
    centred = raw - per_side(raw) / count
    std = (per_side(centred**2) / count).sqrt()
    return torch.where(std > 1e-8, centred / std.clamp(min=1e-8), torch.zeros_like(raw)) * trained
