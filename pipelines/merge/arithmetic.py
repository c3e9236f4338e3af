"""Arithmetic of weights: name → tensor in, name → tensor out, all float32 and of one shape a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

Weights = dict[str, torch.Tensor]
PARALLEL = 1e-6
"""Below this sine two tensors point the same way, and the straight line between them is the arc."""


def linear(models: Sequence[Weights], shares: Sequence[float]) -> Iterator[tuple[str, torch.Tensor]]:
    """Weighted mean; `shares` add up to 1 (model soups, 2203.05482)."""
    for name in models[0]:
        yield name, sum((s * m[name] for s, m in zip(shares, models, strict=True)), torch.zeros(()))


def slerp(models: Sequence[Weights], shares: Sequence[float]) -> Iterator[tuple[str, torch.Tensor]]:
    """Along the arc between two models, tensor by tensor: [sin((1-t)a) x + sin(t a) y] / sin(a) (Shoemake 1985)."""
    first, other = models
    t = shares[1]
    for name, x in first.items():
        y = other[name]
        cosine = torch.nn.functional.cosine_similarity(x.flatten().double(), y.flatten().double(), dim=0)
        angle = torch.arccos(cosine.clamp(-1, 1))
        if float(torch.sin(angle)) < PARALLEL:
            yield name, (1 - t) * x + t * y
        else:
            mixed = torch.sin((1 - t) * angle) * x.double() + torch.sin(t * angle) * y.double()
            yield name, (mixed / torch.sin(angle)).to(x.dtype)


def task_arithmetic(
    models: Sequence[Weights], origin: Weights, weights: Sequence[float], scale: float
) -> Iterator[tuple[str, torch.Tensor]]:
    """origin + scale * sum of w (model - origin) (2212.04089, section 2)."""
    for name, start in origin.items():
        moved = sum((w * (m[name] - start) for w, m in zip(weights, models, strict=True)), torch.zeros(()))
        yield name, start + scale * moved


def ties(
    models: Sequence[Weights], origin: Weights, weights: Sequence[float], scale: float, density: float
) -> Iterator[tuple[str, torch.Tensor]]:
    """Trim, elect signs, merge (2306.01708, algorithm 1).

    Of each difference to the origin the `density` largest entries are kept, over all tensors; each entry gets the sign of their
    weighted sum, and the weighted mean of the kept differences that have it.
    """
    limits = [_limit(model, origin, density) for model in models]
    for name, start in origin.items():
        kept = []
        for model, limit, weight in zip(models, limits, weights, strict=True):
            difference = model[name] - start
            kept.append(weight * torch.where(difference.abs() >= limit, difference, torch.zeros(())))
        stacked = torch.stack(kept)
        agrees = (stacked != 0) & (torch.sign(stacked) == torch.sign(stacked.sum(0)))
        share = torch.tensor(list(weights), dtype=start.dtype).reshape(-1, *[1] * start.ndim)
        total = (agrees * share).sum(0)
        yield name, start + scale * torch.where(total != 0, (stacked * agrees).sum(0) / total, torch.zeros(()))


def _limit(model: Weights, origin: Weights, density: float) -> float:
    """The smallest magnitude that is kept of a difference to the origin; exact zeros never are."""
    sizes = torch.cat([(model[name] - start).abs().flatten() for name, start in origin.items()])
    largest = max(1, round(density * sizes.numel()))
    limit = float(sizes.kthvalue(sizes.numel() - largest + 1).values)
    return max(limit, torch.finfo(torch.float32).tiny)
