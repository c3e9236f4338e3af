"""What a stage that trains with LoRA leaves: adapters by themselves which, on the stage's base, are the model that it hands on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from pipelines.base.files import read_json

IDS = torch.tensor([[7, 8, 9, 10, 11, 12], [12, 9, 13, 8, 14, 7]])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits.float()


def check(out: Path, base: Path, named: str, *, scores: bool = False, atol: float = 1e-4) -> None:
    """The adapters of a stage's `out`, on their base, give the logits (or `scores`) of its model, and not those of the base.

    Args:
        named: what they must call their base.
    """
    cls: Any = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    more = {"num_labels": 1, "pad_token_id": 0} if scores else {}
    handed_on = logits(cls.from_pretrained(out / "model"))
    start = cls.from_pretrained(base, **more)
    bare = logits(start)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(start, out / "adapter")), handed_on, atol=atol, rtol=0)
    assert float((bare - handed_on).abs().max()) > 10 * atol
    assert read_json(out / "adapter/adapter_config.json")["base_model_name_or_path"] == named
    assert not list((out / "model").glob("adapter*"))
    assert sorted(p.name for p in (out / "adapter").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
