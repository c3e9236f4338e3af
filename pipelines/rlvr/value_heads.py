"""Values as a sum of heads, one for each term of the reward, each learned in a space of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

Mapped = Literal["identity", "log", "loglin"]
SCALE, FLOOR = 0.5, 0.01687
"""c and d of the paper's section 5: a logarithm's factor, and the smallest value that it is taken of (about 0.96^100)."""
REST = "(rest)"
"""The head of what the reward has beyond the named terms; none of them can be called so."""


class ValueHeads:
    """Which heads a critic has, what each is fitted to, and the value that they say together.

    A term with the mapping `identity` has one head. One with `log` or `loglin` has two, for what is above 0 and for what is below, each
    of which predicts a number above 0. One head more, the rest's, has the mapping `identity`: the heads always add up to the whole return.

    Args:
        mappings: term → mapping.
        terms: names of the reward's terms, in the order of the column `reward_terms`.
    """

    def __init__(self, mappings: Mapping[str, Mapped], terms: Sequence[str]) -> None:
        self.names: list[str] = []
        self.mapped: list[Mapped] = []
        self.signs: list[int] = []
        """1 and -1 for the heads of what is above and below 0; 0 for a head of both."""
        self.places = [list(terms).index(name) for name in mappings]
        for name, mapping in [*mappings.items(), (REST, "identity")]:
            for sign in (0,) if mapping == "identity" else (1, -1):
                self.names.append(name)
                self.mapped.append(mapping)
                self.signs.append(sign)

    def __len__(self) -> int:
        return len(self.names)

    def goals(self, total: Tensor, terms: Tensor) -> Tensor:
        """What each head predicts, float32 [B, T, H].

        Args:
            total: [B, T], the reward still to come.
            terms: [B, T, C], what of it each term pays.
        """
        own = terms[..., self.places].float()
        goals = {name: own[..., i] for i, name in enumerate(dict.fromkeys(self.names[:-1]))}
        goals[REST] = total - own.sum(-1)
        signed = [
            (goals[name] * sign).clamp(min=0) if sign else goals[name]
            for name, sign in zip(self.names, self.signs, strict=True)
        ]
        return torch.stack(signed, -1)

    def values(self, predicted: Tensor) -> Tensor:
        """What each head says, in the space of rewards; float [..., H] both."""
        heads = zip(predicted.unbind(-1), self.mapped, strict=True)
        return torch.stack([unmapped(value, mapping) for value, mapping in heads], -1)

    def total(self, predicted: Tensor) -> Tensor:
        """The value that the heads say together, float [...]."""
        return (self.values(predicted) * torch.tensor([sign or 1 for sign in self.signs]).to(predicted)).sum(-1)

    def targets(self, predicted: Tensor, goals: Tensor, averaging: float) -> Tensor:
        """What each head is to predict: the mapped value that lies `averaging` of the way from its own to the goal; [..., H].

        The mean over returns is taken in the space of rewards, before the mapping: a logarithm of a mean is no mean of logarithms.
        """
        values = self.values(predicted.detach())
        moved = values + averaging * (goals - values)
        heads = zip(moved.unbind(-1), self.mapped, strict=True)
        return torch.stack([mapped(value, mapping) for value, mapping in heads], -1)


def mapped(value: Tensor, mapping: Mapped) -> Tensor:
    """A value in the space of a head: itself, c ln(value), or that up to 1 and c (value - 1) from there on.

    >>> mapped(torch.tensor([0.0, 0.5, 3.0]), "loglin").tolist()
    [-2.041109, -0.346574, 1.0]
    """
    if mapping == "identity":
        return value
    logarithm = SCALE * value.clamp(min=FLOOR).log()
    return logarithm if mapping == "log" else torch.where(value > 1, SCALE * (value - 1), logarithm)


def unmapped(predicted: Tensor, mapping: Mapped) -> Tensor:
    """The value that a head's prediction stands for.

    >>> unmapped(torch.tensor([-0.346574, 0.0, 1.0]), "loglin").tolist()
    [0.5, 1.0, 3.0]
    """
    if mapping == "identity":
        return predicted
    if mapping == "log":
        return (predicted / SCALE).exp()
    return torch.where(predicted > 0, predicted / SCALE + 1, (predicted.clamp(max=0) / SCALE).exp())
