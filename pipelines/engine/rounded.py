"""bfloat16 copies of a model's matrices for decoding.

Under autocast every pass rounds the float32 weights anew. Training reads each weight once for thousands of tokens, so that
costs little there; decoding reads all of them for one token a row, and rounding would cost more than the token. The copies
hold what autocast would make of the weights, so sampler and trainer still multiply by the same numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D


class RoundedWeights:
    """Puts bfloat16 copies of the matrices in their place while decoding.

    Args:
        model: the model that is decoded; its own weights are left as they are.
        dtype: "float32" (nothing is copied) or "bfloat16".
    """

    def __init__(self, model: torch.nn.Module, dtype: str) -> None:
        self.model, self.enabled = model, dtype == "bfloat16"
        self.copies: dict[tuple[str, str], torch.nn.Parameter] = {}
        """(module, parameter) → copy; kept between calls, because CUDA graphs hold their addresses."""

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Decode with copies of the weights as they are now."""
        if not self.enabled:
            yield
            return
        originals: list[tuple[torch.nn.Module, str, torch.nn.Parameter]] = []
        for module_name, module in self.model.named_modules():
            if not isinstance(module, torch.nn.Linear | Conv1D):
                continue
            for name in ("weight", "bias"):
                weight = module._parameters.get(name)
                if weight is not None and weight.dtype == torch.float32:
                    originals.append((module, name, weight))
                    module._parameters[name] = self._copy((module_name, name), weight)
        try:
            yield
        finally:
            for module, name, weight in originals:
                module._parameters[name] = weight

    def _copy(self, key: tuple[str, str], weight: Tensor) -> torch.nn.Parameter:
        copy = self.copies.get(key)
        if copy is None or copy.device != weight.device:
            copy = torch.nn.Parameter(torch.empty_like(weight, dtype=torch.bfloat16), requires_grad=False)
            self.copies[key] = copy
        copy.data.copy_(weight.detach())
        return copy

    def release(self) -> None:
        """Give the copies' memory back."""
        self.copies = {}
