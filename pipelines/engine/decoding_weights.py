"""Copies of a model's matrices for decoding: rounded to bfloat16, and in the layout that a CPU multiplies by fastest.

Training reads each weight once for thousands of tokens, decoding reads all of them for one token a row. What a pass does to
every weight before it multiplies costs little in training; in decoding it can cost more than the token:

- Under autocast every pass rounds float32 weights to bfloat16. The copies hold what autocast would make of the weights,
  so sampler and trainer still multiply by the same numbers. Weights stored in bfloat16 need none.
- oneDNN reorders a matrix into blocks that fit its kernels, in every call. On a CPU with AVX-512 the copies are stored in that
  layout (`packs`). In bfloat16 the products have the same bits, in float32 they differ by rounding.

Copies are made again in every call of the sampler, because nothing says reliably that weights have changed (the fused AdamW
leaves their version counters as they are).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

PACKED_FROM = 1 << 17
"""Numbers in a float32 matrix from which on oneDNN is faster than MKL; smaller ones stay in a core's cache."""
PACKED_STEPS = 64
"""Decoding steps from which on packing float32 matrices pays; in bfloat16 they are copied anyway."""


def packs(device: torch.device) -> bool:
    """Whether matrices are stored in oneDNN's layout: measured to pay on CPUs with AVX-512 (docs/results.md)."""
    return (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    )


class DecodingWeights:
    """Puts copies of the matrices in their place while decoding.

    Args:
        model: the model that is decoded; its own weights are left as they are.
        dtype: "float32" or "bfloat16".
        packed: store copies in oneDNN's layout; default: where it pays (`packs`).
    """

    def __init__(self, model: torch.nn.Module, dtype: str, *, packed: bool | None = None) -> None:
        self.model, self.dtype = model, getattr(torch, dtype)
        self.packed = packs(next(model.parameters()).device) if packed is None else packed
        self.copies: dict[tuple[str, str], torch.nn.Parameter] = {}
        """(module, parameter) → rounded copy; kept between calls, because CUDA graphs hold their addresses."""
        self.blocks: dict[str, Tensor] = {}
        """Module → its matrix in oneDNN's layout. In float32 they are as large as the model and last for one call."""

    @contextlib.contextmanager
    def in_place(self, steps: int) -> Iterator[None]:
        """Decode with copies of the weights as they are now.

        Args:
            steps: most tokens that are decoded for a row.
        """
        rounds = self.dtype == torch.bfloat16
        packs = self.packed and (rounds or steps >= PACKED_STEPS)
        if not rounds and not packs:
            yield
            return
        with contextlib.ExitStack() as restored:
            for name, module in self.model.named_modules():
                if packs and self._packable(module):
                    self._pack(name, module, restored)
                elif rounds and isinstance(module, torch.nn.Linear | Conv1D) and module.weight.is_floating_point():
                    self._round(name, module, restored)
            if not rounds:
                restored.callback(self.release)
            yield

    def _packable(self, module: torch.nn.Module) -> bool:
        """Whether this module does nothing but multiply by a matrix of plain numbers, large enough to gain."""
        if type(module) is not torch.nn.Linear or "forward" in module.__dict__:  # another library's class, or its hook
            return False
        weight = module.weight
        if type(weight) is not torch.nn.Parameter:  # sharded, or stored in few bits
            return False
        if weight.dtype not in (torch.float32, self.dtype):
            return False
        return self.dtype == torch.bfloat16 or weight.numel() >= PACKED_FROM

    def _pack(self, name: str, module: torch.nn.Linear, restored: contextlib.ExitStack) -> None:
        weight = module.weight.detach().to(self.dtype)
        self.blocks.pop(name, None)  # first, so that its memory serves again
        blocks = self.blocks[name] = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        bias = None if module.bias is None else module.bias.detach().to(self.dtype)
        dtype = self.dtype

        def forward(inputs: Tensor) -> Tensor:
            return torch.ops.mkldnn._linear_pointwise(inputs.to(dtype), blocks, bias, "none", [], "")  # type: ignore[no-any-return]

        module.__dict__["forward"] = forward
        restored.callback(module.__dict__.pop, "forward")

    def _round(self, name: str, module: torch.nn.Module, restored: contextlib.ExitStack) -> None:
        for kind in ("weight", "bias"):
            weight = module._parameters.get(kind)
            if weight is not None and weight.dtype == torch.float32:
                module._parameters[kind] = self._copy((name, kind), weight)
                restored.callback(module._parameters.__setitem__, kind, weight)

    def _copy(self, key: tuple[str, str], weight: Tensor) -> torch.nn.Parameter:
        copy = self.copies.get(key)
        if copy is None or copy.device != weight.device:
            copy = torch.nn.Parameter(torch.empty_like(weight, dtype=torch.bfloat16), requires_grad=False)
            self.copies[key] = copy
        copy.data.copy_(weight.detach())
        return copy

    def release(self) -> None:
        """Give the copies' memory back."""
        self.copies, self.blocks = {}, {}
