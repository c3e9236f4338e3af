"""A frozen base in four bits beside trained adapters (QLoRA, 2305.14314), by bitsandbytes.

The matrix of every linear layer but the output head is stored once in blocks of 64 NF4 values, whose scales are quantised too; what a
pass multiplies by are those values in the model's own type. The same module samples and is trained, so both read the same base.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pipelines.base.errors import ModelError, out_of_memory

FIELD = "lora.load_in_4bit"


def library() -> Any:
    """bitsandbytes.

    Raises:
        ModelError: it is not installed, or cannot be loaded here.
    """
    try:
        import bitsandbytes
    except Exception as error:  # a library that cannot be loaded raises what it likes
        from pipelines.base.distribution import install_hint

        raise ModelError(
            FIELD, f"bitsandbytes cannot be imported ({error})", f"Run: {install_hint('qlora')}, or leave it out."
        ) from error
    return bitsandbytes


def quantize(model: Any, device: torch.device) -> None:
    """Move a causal LM to a device with the matrices of its linear layers stored in four bits, in place.

    Raises:
        ModelError: bitsandbytes is not there, less than half of the weights in the blocks' matrices is in linear layers, or the
            family's code reads a matrix otherwise than through its layer.
    """
    bnb, head = library(), model.get_output_embeddings()
    layers = {name: each for name, each in model.named_modules() if type(each) is nn.Linear and each is not head}
    ends = {id(end.weight) for end in (model.get_input_embeddings(), head) if end is not None}
    in_layers = sum(layer.weight.numel() for layer in layers.values())
    in_matrices = sum(weight.numel() for weight in model.parameters() if weight.ndim > 1 and id(weight) not in ends)
    if 2 * in_layers <= in_matrices:
        raise ModelError(
            FIELD,
            f"{in_layers:,} of the {in_matrices:,} weights in matrices of {type(model).__name__} are in linear layers, and bitsandbytes "
            "quantises these alone",
            "Leave it out.",
        )
    for name, layer in layers.items():
        shape, weight = (layer.in_features, layer.out_features, layer.bias is not None), layer.weight.detach()
        stored = bnb.nn.Linear4bit(*shape, compute_dtype=weight.dtype, quant_type="nf4")
        stored.weight = bnb.nn.Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4")
        stored.bias = layer.bias
        stored.support_avx512bf16_for_cpu = False  # it would round passes without gradient to bfloat16
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, stored.to(device).train(layer.training))
    model.is_loaded_in_4bit = True  # where peft looks
    model.to(device)
    try:
        with torch.no_grad():
            model(input_ids=torch.tensor([[0, 1]], device=device), use_cache=False)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        if out_of_memory(error):
            raise
        text = f"{type(model).__name__} cannot be computed with matrices in four bits ({type(error).__name__}: {error})"
        raise ModelError(FIELD, text, "Leave it out.") from error


@torch.no_grad()
def merged(model: Any) -> Any:
    """The causal LM of a peft wrapper with its adapters added, all matrices in the model's own type.

    What was stored in four bits becomes the values that passes multiplied by, so nothing is quantised again; a sum with an adapter is
    rounded to the model's type once.
    """
    from peft.tuners.lora import LoraLayer

    for name, module in list(model.named_modules()):
        layer = module.base_layer if isinstance(module, LoraLayer) else module
        if getattr(getattr(layer, "weight", None), "quant_state", None) is None or name.endswith(".base_layer"):
            continue
        added = module.get_delta_weight("default") if layer is not module else None
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, _dense(layer, added))
    model.get_base_model().is_loaded_in_4bit = False
    return model.merge_and_unload()


def _dense(layer: Any, added: Tensor | None) -> nn.Linear:
    """A linear layer as it was before it was quantised, with what is added to its matrix."""
    weight = library().functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    weight = weight.to(layer.compute_dtype)
    dense = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, weight.device, weight.dtype)
    dense.weight.copy_(weight if added is None else weight + added.to(weight.dtype))
    dense.bias = layer.bias
    return dense
