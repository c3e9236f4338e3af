"""Adapters: made beside a model, and written by themselves in peft's own format, beside the model that they are merged into."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import Tensor

from pipelines.base.errors import ModelError
from pipelines.engine import models
from pipelines.engine.model_files import first_line

WEIGHTS = "adapter_model.safetensors"
SCORE = "base_model.model.score.weight"
"""Where peft looks for the head of a sequence classifier."""


def with_lora(model: Any, lora: Any) -> Any:
    """Wrap a model in trainable adapters; the base weights are frozen, and stored in four bits where that is asked for.

    Raises:
        ModelError: the model has none of the modules that the recipe names, an adapter would change two of them, DoRA cannot have
            them, or they cannot be quantised.
    """
    if lora.load_in_4bit:
        from pipelines.engine import quantization

        quantization.quantize(model, models.device())
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora.layer import ParamWrapper
    from peft.tuners.tuners_utils import BaseTunerLayer

    from pipelines.engine.recurrent import fused_matrices

    left_out = list(fused_matrices(model)) if lora.target_modules == "all-linear" else []
    if hasattr(model, "eyes"):
        left_out += model.eyes.names()
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        exclude_modules=left_out or None,
        use_dora=lora.use_dora,
        use_rslora=lora.use_rslora,
        task_type="CAUSAL_LM",
    )
    try:
        wrapped = get_peft_model(model, config)
    except ValueError as error:
        if lora.use_dora and ParamWrapper.__name__ in str(error):
            raise ModelError(
                "lora.use_dora",
                f"the experts of {type(model).__name__} are one tensor, which DoRA cannot adapt",
                "Name matrices of the attention in lora.target_modules, such as [q_proj, k_proj, v_proj, o_proj], or leave use_dora out.",
            ) from error
        raise ModelError("lora.target_modules", first_line(error)) from error
    adapted = {name: module for name, module in wrapped.named_modules() if isinstance(module, BaseTunerLayer)}
    check(model, adapted)
    return wrapped


def save(model: Any, folder: Path, base: str, revision: str | None = None, *, score: Tensor | None = None) -> None:
    """Write what `peft.PeftModel.from_pretrained(base, folder)` loads; call it before the adapters are merged.

    peft's own `save_pretrained` writes sets in an order that changes from process to process, and a card with folders of this
    machine; equal adapters give equal bytes here.

    Args:
        model: of peft, on any device.
        base: what the adapters belong to: a hub name, a folder or the name of an artifact.
        revision: of that hub name.
        score: a reward model's head, float32 [1, hidden]; the adapters are then those of a sequence classifier with one label.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    config = copy.copy(model.peft_config["default"])
    for name, value in vars(config).items():
        if isinstance(value, set):
            setattr(config, name, sorted(value))
    config.base_model_name_or_path, config.revision, config.inference_mode = base, revision, True
    weights: dict[str, Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    if score is not None:
        config.task_type, config.modules_to_save = "SEQ_CLS", ["score"]
        weights[SCORE] = score
    config.save_pretrained(str(folder))
    state = {name: weight.detach().cpu().clone().contiguous() for name, weight in weights.items()}
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


def check(model: Any, adapted: dict[str, Any]) -> None:
    """Refuse adapters that would not act, or that would make another model of this one when they are merged.

    Args:
        adapted: name → layer with an adapter.

    Raises:
        ModelError: names the matrix.
    """
    from pipelines.engine.recurrent import fused_matrices

    field, family = "lora.target_modules", type(model).__name__
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    if ends[0].weight is ends[1].weight and any(end in adapted.values() for end in ends):
        raise ModelError(
            field,
            f"the embedding and the output head of {family} are one matrix, and an adapter on either would change both when it is merged",
            "Leave both out.",
        )
    fused = tuple(fused_matrices(model))
    first: dict[int, str] = {}
    for name, layer in adapted.items():
        own = name.rpartition(".")[2]
        if name.endswith(fused):
            raise ModelError(
                field,
                f"{family} reads the matrix {own} of its Mamba layers itself, past any adapter",
                f"Leave {own} out.",
            )
        other = first.setdefault(id(getattr(layer.get_base_layer(), "weight", layer)), name)
        if other != name:
            raise ModelError(
                field,
                f"layers of {family} share one matrix {own}, and the adapters of all of them would be added to it when they are merged "
                f"({other} and {name})",
                f"Name matrices that each layer has for itself; {own} is none.",
            )
