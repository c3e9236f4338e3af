"""What a forward pass says of some pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.data.pairs import IMPORTANCE
from pipelines.reward_model.pack import Tokens

DISTANCES = ("chosen_prior", "rejected_prior")
"""The columns of `prior_distance`."""


@dataclass(frozen=True)
class Scores:
    """Of the chosen answers of some pairs, then of the rejected ones."""

    rewards: Tensor
    """[2P, heads]"""
    logps: Tensor | None = None
    """Of the answers under the language head, [2P]; None where no loss reads them."""
    distances: Tensor | None = None
    """`prior_distance`; None where no loss reads it."""

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        """Of all pairs of the parts."""
        logps = [part.logps for part in parts if part.logps is not None]
        distances = [part.distances for part in parts if part.distances is not None]
        return cls(
            joined([part.rewards for part in parts]),
            joined(logps) if logps else None,
            joined(distances) if distances else None,
        )


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Values of parts that each hold chosen answers, then rejected ones: all chosen, then all rejected."""
    return torch.cat([side for half in (0, 1) for part in parts for side in [part.chunk(2)[half]]])


def shares_of(batch: Sequence[Tokens]) -> Tensor:
    """What each turn counts of its answer, in the order of `answers`, float32 [N]; all alike where a pair does not say."""
    shares: list[float] = []
    for side, name in enumerate(IMPORTANCE):
        for pair in batch:
            count = len(pair.passages[side])
            shares += getattr(pair.pair, name) or [1 / count] * count
    return torch.tensor(shares)


def prior_distance(rewards: Tensor, summed: Tensor, owner: Tensor, shares: Tensor) -> Tensor:
    """Mean over an answer's turns of (reward - share of the answer's reward)^2, [2P, heads].

    Args:
        rewards: of the turns, [N, heads].
        summed: of the answers, [2P, heads].
        owner: the answer of each turn, int64 [N].
        shares: of the turns, [N]; those of an answer add up to 1.

    >>> rewards, owner = torch.tensor([[1.0], [3.0], [2.0]]), torch.tensor([0, 0, 1])
    >>> prior_distance(rewards, torch.tensor([[4.0], [2.0]]), owner, torch.tensor([0.5, 0.5, 1.0])).squeeze(1).tolist()
    [1.0, 0.0]
    """
    squares = (rewards - shares[:, None] * summed[owner]).square()
    turns = torch.zeros(len(summed)).index_add(0, owner, torch.ones(len(owner)))
    return torch.zeros_like(summed).index_add(0, owner, squares) / turns[:, None]
