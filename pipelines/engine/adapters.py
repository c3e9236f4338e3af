"""Adapters by themselves, in peft's own format: what LoRA has trained, beside the model that they are merged into."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import Tensor

WEIGHTS = "adapter_model.safetensors"
SCORE = "base_model.model.score.weight"
"""Where peft looks for the head of a sequence classifier."""


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
