"""What the blocks of a decoder keep for the backward pass, held in the machine's own memory instead of the device's."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks


def offload_activations(decoder: torch.nn.Module, device: torch.device) -> saved_tensors_hooks:
    """Have passes through a decoder keep what the backward pass reads in host memory, by torch's `save_on_cpu`.

    Weights stay where they are, and so does what has the shape of one, such as matrices that autocast has rounded. With recomputed
    blocks what is kept are the blocks' inputs. What the head and the loss keep is not of the decoder, and stays too. Copies are exact,
    so gradients have the same bits.

    Args:
        decoder: whose passes are meant; it may be adapted and sharded afterwards.
        device: that it computes on; with a GPU host memory is pinned.
    """
    shapes = {shape for weight in decoder.parameters() for shape in (weight.shape, weight.shape[::-1])}
    hooks = saved_tensors_hooks(*_of_all_but_weights(save_on_cpu(pin_memory=device.type == "cuda"), shapes))
    decoder.register_forward_pre_hook(lambda *_: hooks.__enter__())
    decoder.register_forward_hook(lambda *_: hooks.__exit__(), always_call=True)  # also where memory runs out midway
    return hooks


def _of_all_but_weights(kept: Any, shapes: set[torch.Size]) -> tuple[Any, Any]:
    """The two hooks of `save_on_cpu`, which let weights and views of them pass."""

    def pack(tensor: torch.Tensor) -> Any:
        origin = tensor._base if tensor._base is not None else tensor
        weight = isinstance(origin, torch.nn.Parameter) or tensor.shape in shapes
        return tensor if weight else kept.pack_hook(tensor)

    def unpack(packed: Any) -> torch.Tensor:
        restored: torch.Tensor = packed if isinstance(packed, torch.Tensor) else kept.unpack_hook(packed)
        return restored

    return pack, unpack
