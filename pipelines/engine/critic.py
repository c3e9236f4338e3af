"""A value head over a body of its own: what reward is still to come, before each token."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from pipelines.engine.shared import Layout
from pipelines.models import autocast


class Critic(torch.nn.Module):
    """The policy's body, copied at the start, with one number per position instead of logits.

    The head starts at zero, so the first values are 0 and the first advantages are the returns.

    Args:
        decoder: the policy's transformer without its head; copied.
        width: size of its hidden states.
        dtype: as in `Policy`.
    """

    def __init__(self, decoder: Any, width: int, *, dtype: str = "float32") -> None:
        super().__init__()
        self.body = copy.deepcopy(decoder).requires_grad_(True)
        self.head = torch.nn.Linear(width, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.dtype, self.device = dtype, next(decoder.parameters()).device
        self.to(self.device)

    def forward(self, layout: Layout) -> Tensor:
        """Value before each of the layout's scored tokens, float32 [M]."""
        with autocast(self.dtype, self.device):
            hidden = self.body(
                input_ids=layout.ids.to(self.device),
                attention_mask=None if layout.attention is None else layout.attention.to(self.device),
                position_ids=layout.positions.to(self.device),
                use_cache=False,
            ).last_hidden_state
            return self.head(hidden.flatten(0, 1)[layout.source.to(self.device)]).squeeze(-1).float()
