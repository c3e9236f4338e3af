"""A critic: a value head over a transformer body of its own, which predicts the return before each token."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from pipelines.engine.layout import Layout
from pipelines.engine.masks import MaskForm
from pipelines.engine.models import autocast
from pipelines.engine.policy import hidden_states


class Critic(torch.nn.Module):
    """The policy's body, copied at the start, with one value per position, or several, instead of logits.

    Args:
        decoder: the policy's transformer without its head; copied.
        head: hidden states [..., width] → values [..., heads].
        dtype: as in `Policy`.
    """

    def __init__(self, decoder: Any, head: torch.nn.Module, *, dtype: str = "float32") -> None:
        super().__init__()
        self.body = copy.deepcopy(decoder).requires_grad_(True)
        self.mask_form = MaskForm.of(self.body.config)
        self.head = head
        self.dtype, self.device = dtype, next(decoder.parameters()).device
        self.to(self.device)

    def forward(self, layout: Layout) -> Tensor:
        """Value before each of the layout's scored tokens, float32 [M]; of several heads [M, heads]."""
        with autocast(self.dtype, self.device):
            return self.head(hidden_states(self.body, layout, self.device, self.mask_form)).squeeze(-1).float()


def zero_head(width: int, heads: int = 1) -> torch.nn.Linear:
    """A head that starts at zero, so the first values are 0 and the first advantages are the returns."""
    head = torch.nn.Linear(width, heads)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head
