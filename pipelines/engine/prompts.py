"""Prompts side by side, for loops that sample in a way of their own: masked diffusion and latent reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prompts:
    """Prompts side by side, padded on the left, so that all answers begin at the same place."""

    tokens: Tensor
    """int64 [B, P]."""
    attended: Tensor
    """bool [B, P], False at padding."""

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> Prompts:
        """Prompts as tensors.

        Args:
            prompts: token ids of each.
            pad: the id that fills them up.
        """
        width = max(map(len, prompts))
        rows = [[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        kept = [[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts]
        return cls(torch.tensor(rows, device=device), torch.tensor(kept, device=device))

    def followed_by(self, answers: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and attended places of the prompts with answers int64 [B, G] behind them."""
        attended = torch.cat([self.attended, torch.ones_like(answers, dtype=torch.bool)], 1)
        return torch.cat([self.tokens, answers], 1), attended

    def rows(self, chosen: Tensor | slice) -> Prompts:
        """Some of the prompts, in the order that is asked for."""
        return Prompts(self.tokens[chosen], self.attended[chosen])
