"""Conversations that end with an answer, laid out for the forward passes of a reward model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.engine.layout import Layout, best_layouts


@dataclass(frozen=True, eq=False)
class Answers:
    """Conversations that end with an answer, each with a position after its last token whose prediction reads the reward."""

    tokens: Tensor
    """int64 [B, T], padded on the right."""
    mask: Tensor
    """bool [B, T], the answer's tokens and the position after them."""
    end: Tensor
    """int64 [B], that place."""

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], starts: Sequence[int], pad: int) -> Answers:
        """Rows from token ids; padding at their end is left out, as transformers does when it looks for the last token.

        Args:
            starts: index of each answer's first token.
        """
        ends = [max((i + 1 for i, token in enumerate(row) if token != pad), default=1) for row in sequences]
        tokens = torch.full((len(ends), max(ends, default=0) + 1), pad, dtype=torch.int64)
        for i, (row, length) in enumerate(zip(sequences, ends, strict=True)):
            tokens[i, :length] = torch.tensor(row[:length])
        end, place = torch.tensor(ends), torch.arange(tokens.shape[1])
        start = torch.tensor([max(1, start) for start in starts]).minimum(end)
        return cls(tokens, (place >= start[:, None]) & (place <= end[:, None]), end)

    def layouts(self, budget: int, *, trees: bool, prefixes: bool) -> list[Layout]:
        """Forward passes over all rows, about `budget` tokens each; what rows share is computed once where it pays."""
        rows = torch.arange(len(self.tokens))
        return best_layouts(self.tokens, self.mask, rows, budget, allow_trees=trees, allow_prefixes=prefixes)

    def where(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """Row of each scored place of a layout, int64 [M], and whether it reads the reward, bool [M]."""
        width = self.tokens.shape[1]
        row = layout.target // width
        return row, layout.target % width == self.end[row]
