"""Small tensor verbs shared by methods. Edge cases have one answer, and it is here.

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
    """Sum over the entry's group, given back per entry, float64."""
    index, n = group_index(group)
    return torch.zeros(n, dtype=torch.float64, device=x.device).index_add_(0, index, x.double())[index]


def group_size(group: Tensor, scored: Tensor) -> Tensor:
    """Counted rows in the row's group, float64."""
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
    low = torch.full((n,), float("inf"), dtype=torch.float64, device=x.device)
    return low.scatter_reduce_(0, index, x.double().masked_fill(~scored, float("inf")), "amin")[index]


def group_max(x: Tensor, group: Tensor, scored: Tensor) -> Tensor:
    """Largest value among the scored rows of the row's group."""
    return -group_min(-x, group, scored)


def homogeneous(x: Tensor, group: Tensor, scored: Tensor) -> Tensor:
    """bool, all scored rows of the row's group have the same value (a group of one too)."""
    spread = group_max(x, group, scored) - group_min(x, group, scored)
    return ~(spread > SAME)


def to_tokens(per_row: Tensor, mask: Tensor) -> Tensor:
    """Spread a number per row over the row's trained tokens, float32."""
    return per_row.float()[:, None] * mask


def whiten(x: Tensor, mask: Tensor, *, ddof: int = 1, eps: float = 1e-8) -> Tensor:
    """Zero mean and unit variance over the masked tokens of the batch; 0 outside; centred only where it has no variance."""
    n = mask.sum()
    if n < 2:
        return x * mask
    values = x.double() * mask
    mean = values.sum() / n
    variance = (((x.double() - mean) ** 2) * mask).sum() / (n - ddof)
    return (((x.double() - mean) / (variance + eps).sqrt()) * mask).float()


def row_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over a row's masked tokens; 0 for a row without any."""
    return (x * mask).sum(1) / mask.sum(1).clamp(min=1)


def ratio(logp: Tensor, logp_old: Tensor) -> Tensor:
    """exp(logp - logp_old), the exponent clamped to ±20."""
    return (logp - logp_old).clamp(-20, 20).exp()


def grow(d: Tensor) -> Tensor:
    """expm1(d), going on linearly from 10 on."""
    inside = d.clamp(max=10.0)
    return torch.expm1(inside) + (d - inside) * torch.exp(torch.tensor(10.0))


def next_place(flag: Tensor) -> Tensor:
    """Index of the next True behind each position, int64 [B, T]; T where there is none."""
    width = flag.shape[1]
    here = torch.where(flag, torch.arange(width).expand_as(flag), width)
    return torch.nn.functional.pad(here.flip(1).cummin(1).values.flip(1)[:, 1:], (0, 1), value=width)


def spread_out(term: Tensor, weight: Tensor) -> Tensor:
    """One number for a whole update as a loss per token: weighted by `weight` it adds up to the number."""
    return term / weight.sum().clamp(min=1e-12) * torch.ones_like(weight)
