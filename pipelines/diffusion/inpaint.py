"""IGPO's inpainting (2509.10396): parts of the solution stand in an answer from the start, and the model writes around them.

As in the paper the parts stand at their own places; the official code spreads them over a longer answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipelines.diffusion.settings import Inpainting


def chunks(length: int, settings: Inpainting, draw: torch.Generator) -> list[slice]:
    """A solution of so many tokens in parts of random sizes; a rest that is smaller than the smallest is left out.

    >>> chunks(5, Inpainting(chunk_least=2, chunk_most=2), torch.Generator())
    [slice(0, 2, None), slice(2, 4, None)]
    """
    parts, start = [], 0
    while start < length:
        size = int(torch.randint(settings.chunk_least, settings.chunk_most + 1, (), generator=draw))
        size = min(size, length - start)
        if size < settings.chunk_least:
            break
        parts.append(slice(start, start + size))
        start += size
    return parts


def shown(
    solution: Sequence[int], length: int, mask: int, share: float, settings: Inpainting, draw: torch.Generator
) -> Tensor:
    """An answer of masks with a share of the solution's chunks, int64 [length].

    Args:
        share: of the chunks; the number that stays masked is rounded down.
    """
    answer = torch.full((length,), mask)
    parts = chunks(len(solution), settings, draw)
    hidden = int(len(parts) * (1 - share))
    for number in torch.randperm(len(parts), generator=draw)[hidden:].tolist():
        answer[parts[number]] = torch.tensor(solution[parts[number]])
    return answer


def shares(count: int, settings: Inpainting, draw: torch.Generator) -> list[float]:
    """The share of the chunks that each of `count` answers is shown, in rising order."""
    spread = settings.most - settings.least
    return [settings.least + spread * value for value in torch.rand(count, generator=draw).sort().values.tolist()]


def trained(entropy: Tensor, injected: Tensor, share: float) -> Tensor:
    """bool [B, G]: of the tokens that were injected those with the highest entropy, a share of each row's and one at least; all others.

    Args:
        entropy: float32 [B, G], in nats.
        injected: bool [B, G], tokens of the solution.

    >>> entropy = torch.tensor([[0.1, 0.9, 0.4, 0.2, 1.3, 0.05, 2.0]])
    >>> trained(entropy, torch.tensor([[True] * 6 + [False]]), 0.2).tolist()
    [[False, False, False, False, True, False, True]]
    """
    number = (injected.sum(1) * share).long().clamp(min=1)
    order = entropy.masked_fill(~injected, float("-inf")).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(injected.shape[1], device=injected.device).expand_as(order)
    place = torch.empty_like(order).scatter_(1, order, places)
    return ~injected | (place < number[:, None])
