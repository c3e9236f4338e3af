"""Small tensor operations shared by methods. Edge cases have one answer, and it is here.

Group statistics are taken in float64: in float32 the mean of equal values can differ from them in the
last bit, which a division by a small deviation turns into a signal. A group of one has mean equal to
its value and deviation 0, so its centred reward is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

SAME = 1e-8
"""Deviations up to this are zero variance."""


def group_index(group: Tensor) -> tuple[Tensor, int]:
    """Group ids as 0..n-1, and n."""
    values, index = group.unique(return_inverse=True)
    return index, len(values)


def group_sum(x: Tensor, group: Tensor) -> Tensor:
    """Sum over the entry's group, returned per entry, float64."""
    index, n = group_index(group)
    return torch.zeros(n, dtype=torch.float64, device=x.device).index_add_(0, index, x.double())[index]


def group_size(group: Tensor, scored: Tensor) -> Tensor:
    """Scored rows in the row's group, float64."""
    return group_sum(scored.double(), group)


def group_mean(x: Tensor, group: Tensor, scored: Tensor) -> Tensor:
    """Mean over the scored rows of the row's group, float64; 0 where none is scored."""
    return group_sum(x.double() * scored, group) / group_size(group, scored).clamp(min=1)


def group_std(x: Tensor, group: Tensor, scored: Tensor, *, ddof: int = 1) -> Tensor:
    """Deviation over the scored rows of the row's group, float64; 0 for a group of one. ddof=1 is torch.std."""
    n = group_size(group, scored)
    square = (x.double() - group_mean(x, group, scored)) ** 2 * scored
    return (group_sum(square, group) / (n - ddof).clamp(min=1)).sqrt()


def group_min(x: Tensor, group: Tensor, scored: Tensor) -> Tensor:
    """Smallest value among the scored rows of the row's group."""
    index, n = group_index(group)
    smallest = torch.full((n,), float("inf"), dtype=torch.float64, device=x.device)
    return smallest.scatter_reduce_(0, index, x.double().masked_fill(~scored, float("inf")), "amin")[index]


def group_max(x: Tensor, group: Tensor, scored: Tensor) -> Tensor:
    """Largest value among the scored rows of the row's group."""
    return -group_min(-x, group, scored)


def group_rank(order: Tensor, group: Tensor, scored: Tensor) -> Tensor:
    """Place of each row in its group, from 0, int64 [B]; rows that are not scored come last.

    Args:
        order: every row's index once, those that come first in front.

    >>> g = torch.tensor([0, 1, 0, 0])
    >>> group_rank(torch.tensor([3, 2, 1, 0]), g, torch.tensor([True, True, True, False])).tolist()
    [1, 0, 0, 2]
    """
    index, groups = group_index(group)
    by_scored = order[(~scored)[order].long().argsort(stable=True)]
    by_group = by_scored[index[by_scored].argsort(stable=True)]
    rows = torch.bincount(index, minlength=groups)
    start = rows.cumsum(0) - rows
    place = torch.empty_like(order).scatter_(0, by_group, torch.arange(len(order), device=order.device))
    return place - start[index]


def homogeneous(x: Tensor, group: Tensor, scored: Tensor) -> Tensor:
    """bool, all scored rows of the row's group have the same value (a group of one too)."""
    spread = group_max(x, group, scored) - group_min(x, group, scored)
    return ~(spread > SAME)


def accuracy_band(correct: Tensor, group: Tensor, scored: Tensor) -> Tensor:
    """How hard the row's group is by its share of correct rows, int64 [B]: 0 from 2/3 on (easy), 1 from 1/3 on, else 2 (hard).

    >>> accuracy_band(torch.tensor([1.0, 1, 0, 0]), torch.tensor([0, 0, 0, 1]), torch.ones(4).bool()).tolist()
    [0, 0, 0, 2]
    """
    accuracy = group_mean(correct, group, scored)
    return torch.where(accuracy >= 2 / 3 - 1e-9, 0, torch.where(accuracy >= 1 / 3 - 1e-9, 1, 2))


def demonstrations(mask: Tensor, teacher_forced: Tensor) -> Tensor:
    """bool [B], rows whose every trained token is teacher-forced; a hint in front of the policy's own tokens makes no demonstration.

    >>> demonstrations(torch.ones(3, 2).bool(), torch.tensor([[True, True], [True, False], [False, False]])).tolist()
    [True, False, False]
    """
    return teacher_forced.any(1) & ~(mask & ~teacher_forced).any(1)


def to_tokens(per_row: Tensor, mask: Tensor) -> Tensor:
    """Spread a value per row over the row's trained tokens, float32."""
    return per_row.float()[:, None] * mask


def whiten(x: Tensor, mask: Tensor, *, ddof: int = 1, eps: float = 1e-8) -> Tensor:
    """Zero mean and unit variance over the masked tokens of the batch; 0 outside; centred only where it has no variance.

    Args:
        mask: bool [B, T], or how much each token counts in the statistics, as `loss_share` says it.
    """
    counts, inside = mask.double(), mask > 0
    n = counts.sum()
    if n < 2:
        return x * inside
    mean = (x.double() * counts).sum() / n
    variance = ((x.double() - mean) ** 2 * counts).sum() / (n - ddof)
    return ((x.double() - mean) / (variance + eps).sqrt() * inside).to(x.dtype)


def row_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over a row's masked tokens; 0 for a row without any."""
    return (x * mask).sum(1) / mask.sum(1).clamp(min=1)


def ratio(logp: Tensor, logp_old: Tensor) -> Tensor:
    """exp(logp - logp_old), the exponent clamped to ±20."""
    return (logp - logp_old).clamp(-20, 20).exp()


def next_index(flag: Tensor) -> Tensor:
    """Index of the next True after each position, int64 [B, T]; T where there is none."""
    width = flag.shape[1]
    position = torch.where(flag, torch.arange(width).expand_as(flag), width)
    return torch.nn.functional.pad(position.flip(1).cummin(1).values.flip(1)[:, 1:], (0, 1), value=width)


def clipped(ratio: Tensor, advantage: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """PPO's pessimistic surrogate as a loss: max(-rho A, -clip(rho, 1 - low, 1 + high) A), in the shape of the inputs.

    >>> clipped(torch.tensor([1.5, 0.5]), torch.tensor([1.0, -1.0]), 0.2, 0.2).tolist()
    [-1.2, 0.8]
    """
    bounded = torch.minimum(torch.maximum(ratio, torch.as_tensor(1 - low)), torch.as_tensor(1 + high))
    return torch.maximum(-ratio * advantage, -bounded * advantage)


def standardised(
    x: Tensor, group: Tensor, scored: Tensor, *, scale: bool = True, eps: float = 1e-6, ddof: int = 1
) -> Tensor:
    """(x - group mean) / (group deviation + eps), float64; unscored rows and groups of one get 0.

    Args:
        scale: False only takes the mean off.

    >>> standardised(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([0, 0, 1]), torch.ones(3).bool(), eps=1e-9).tolist()
    [0.707107, -0.707107, 0.0]
    """
    centred = (x - group_mean(x, group, scored)) * scored
    return centred / (group_std(x, group, scored, ddof=ddof) + eps) if scale else centred


def dual_clipped(loss: Tensor, advantage: Tensor, bound: float | None) -> Tensor:
    """The loss of negative advantages bounded at `-bound * A` (dual-clip PPO, 1912.09729); None bounds nothing."""
    return loss if bound is None else torch.where(advantage < 0, torch.minimum(loss, -bound * advantage), loss)


def loss_rows(mask: Tensor, in_loss: Tensor, loss_share: Tensor) -> Tensor:
    """bool [B], rows that a mean over rows divides by.

    Those in the loss, without rows whose every trained token left it; a row that has no trained token to begin with counts.
    """
    return in_loss & ((loss_share > 0).any(1) | ~mask.any(1))


def spread_out(term: Tensor, weight: Tensor) -> Tensor:
    """A scalar of a whole update as a loss per token: weighted by `weight` it adds up to the scalar."""
    return term / weight.sum().clamp(min=1e-12) * torch.ones_like(weight)


def mean_state(hidden: Tensor) -> list[float]:
    """The mean of a row's hidden states [n, hidden], for `HiddenStatistics`."""
    return hidden.double().mean(0).tolist()
