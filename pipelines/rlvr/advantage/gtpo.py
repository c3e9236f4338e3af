"""Token rewards in proportion to entropy, correct and incorrect rows normalised separately."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_index


@method(
    paper="2508.04349",
    title="GTPO and GRPO-S: Token and Sequence-Level Reward Shaping with Policy Entropy",
    checked="third-party code (teilomillet/textpolicy), 5 cases",
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
