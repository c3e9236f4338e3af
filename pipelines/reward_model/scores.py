"""What a forward pass says of some pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    divergence: Tensor | None = None
    """KL of the posterior of each pair's user, [P]; None where rewards depend on no user."""
    cosine: Tensor | None = None
    """Between the weights of the first two heads, a scalar; None where there is one head."""

    @property
    def columns(self) -> dict[str, Tensor]:
        """Those that there are, of the pairs: all values of a pair in a row, [P, ...]."""
        sides = {"rewards": self.rewards, "logps": self.logps, "distances": self.distances}
        both = {name: torch.stack(value.chunk(2), 1) for name, value in sides.items() if value is not None}
        return both if self.divergence is None else both | {"divergence": self.divergence}

    @classmethod
    def of_columns(cls, columns: dict[str, Tensor], cosine: Tensor | None) -> Scores:
        """The inverse of `columns`."""
        sides = {name: torch.cat(value.unbind(1)) for name, value in columns.items() if name != "divergence"}
        return cls(**sides, divergence=columns.get("divergence"), cosine=cosine)


def by_place(parts: Iterable[tuple[Sequence[int], dict[str, Tensor]]], count: int) -> dict[str, Tensor]:
    """Columns of `count` pairs from those of some of them at a time, each with the pairs' places."""
    columns: dict[str, Tensor] = {}
    for places, values in parts:
        for name, value in values.items():
            columns.setdefault(name, value.new_zeros(count, *value.shape[1:]))[list(places)] = value
    return columns


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
