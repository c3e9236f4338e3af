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

    The head starts at zero, so the first values are 0 and the first advantages are the returns.

    Args:
        decoder: the policy's transformer without its head; copied.
        width: size of its hidden states.
        dtype: as in `Policy`.
        heads: how many values a position has.
    """

    def __init__(self, decoder: Any, width: int, *, dtype: str = "float32", heads: int = 1) -> None:
        super().__init__()
        self.body = copy.deepcopy(decoder).requires_grad_(True)
        self.mask_form = MaskForm.of(self.body.config)
        self.head = torch.nn.Linear(width, heads)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.dtype, self.device = dtype, next(decoder.parameters()).device
        self.to(self.device)

    def forward(self, layout: Layout) -> Tensor:
        """Value before each of the layout's scored tokens, float32 [M]; of several heads [M, heads]."""
        with autocast(self.dtype, self.device):
            return self.head(hidden_states(self.body, layout, self.device, self.mask_form)).squeeze(-1).float()
