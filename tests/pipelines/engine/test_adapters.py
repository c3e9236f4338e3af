"""Adapters by themselves: on their base they are the merged model, and equal ones have equal bytes."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from pipelines.base.errors import ModelError
from pipelines.engine import adapters
from pipelines.recipe.model_path import ADAPTER_CONFIG
from pipelines.recipe.training import Lora

IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}


def moved(model, lora: Lora):
    """The model with adapters, every number of which has moved."""
    model = adapters.with_lora(model, lora)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.mul_(1 + 0.1 * torch.rand_like(weight)) if "magnitude" in name else weight.normal_(std=0.1)
    return model


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def with_experts():
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3_moe", vocab_size=100, **toys.SMALL, **EXPERTS)
    return AutoModelForCausalLM.from_config(config).float()


@pytest.mark.parametrize(
    "lora",
    [
        {}, {"rank": 4, "alpha": 3}, {"use_dora": True}, {"rank": 9, "use_rslora": True},
        {"use_dora": True, "use_rslora": True, "rank": 3}, {"target_modules": ["q_proj", "up_proj"], "dropout": 0.5},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_on_its_base_an_adapter_is_the_merged_model(tmp_path, family, lora):
    if family == "gpt2" and "target_modules" in lora:
        lora = {"target_modules": ["c_attn"]}
    base = toys.model(family)
    start = logits(base)
    model = moved(copy.deepcopy(base), Lora(**lora))
    adapters.save(model, tmp_path / "adapter", "org/base", "main")
    merged = model.merge_and_unload()
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert (logits(merged) - start).abs().max() > 0.1
    torch.testing.assert_close(logits(loaded), logits(merged), atol=1e-5, rtol=1e-5)
    assert sorted(p.name for p in (tmp_path / "adapter").iterdir()) == [ADAPTER_CONFIG, adapters.WEIGHTS]
    config = json.loads((tmp_path / "adapter" / ADAPTER_CONFIG).read_text())
    assert (config["base_model_name_or_path"], config["revision"], config["peft_type"]) == ("org/base", "main", "LORA")
    assert config["use_dora"] == lora.get("use_dora", False) and config["inference_mode"] is True


def test_peft_finds_the_base_by_the_name_in_it(tmp_path, monkeypatch):
    base = toys.model()
    base.save_pretrained(tmp_path / "sft-0123456789abcdef")
    model = moved(base, Lora(rank=2))
    adapters.save(model, tmp_path / "adapter", "sft-0123456789abcdef")
    monkeypatch.chdir(tmp_path)
    found = AutoPeftModelForCausalLM.from_pretrained("adapter")
    torch.testing.assert_close(logits(found), logits(model), atol=1e-5, rtol=1e-5)


def test_experts_are_kept_too_and_dora_cannot_have_them(tmp_path):
    base = with_experts()
    model = moved(copy.deepcopy(base), Lora(rank=2))
    adapters.save(model, tmp_path, "base")
    assert any("experts" in name for name in load_file(tmp_path / adapters.WEIGHTS))
    loaded = PeftModel.from_pretrained(base, tmp_path)
    torch.testing.assert_close(logits(loaded), logits(model.merge_and_unload()), atol=1e-5, rtol=1e-5)
    with pytest.raises(ModelError, match=r"lora\.use_dora: the experts of Qwen3MoeForCausalLM .* Name matrices"):
        adapters.with_lora(with_experts(), Lora(use_dora=True))
    adapters.with_lora(with_experts(), Lora(use_dora=True, target_modules=["q_proj", "v_proj"]))


@pytest.mark.parametrize(("family", "name"), [("gemma2", "lm_head"), ("gemma2", "embed_tokens"), ("gpt2", "wte")])
def test_a_tied_head_cannot_have_an_adapter_of_its_own(family, name):
    """Merged it would change the embedding too, and the model handed on would not be the one that was trained."""
    with pytest.raises(ModelError, match=r"lora\.target_modules: the embedding and the output head .* Leave both out"):
        adapters.with_lora(toys.model(family), Lora(target_modules=[name]))


def test_a_head_of_its_own_can(tmp_path):
    base = toys.model("llama")
    model = moved(copy.deepcopy(base), Lora(target_modules=["lm_head", "embed_tokens", "q_proj"]))
    adapters.save(model, tmp_path, "base")
    assert not any("base_layer" in name for name in load_file(tmp_path / adapters.WEIGHTS)), "the base's own matrices"
    loaded = PeftModel.from_pretrained(base, tmp_path)
    torch.testing.assert_close(logits(loaded), logits(model.merge_and_unload()), atol=1e-5, rtol=1e-5)


@settings(max_examples=15, deadline=None)
@given(rank=st.integers(1, 12), alpha=st.floats(0.5, 64), rslora=st.booleans())
def test_alpha_and_rank_scale_as_the_papers_say(rank, alpha, rslora):
    model = adapters.with_lora(toys.model(), Lora(rank=rank, alpha=alpha, use_rslora=rslora))
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    assert layer.scaling["default"] == pytest.approx(alpha / (math.sqrt(rank) if rslora else rank))
    assert layer.lora_A["default"].weight.shape[0] == rank


def test_dora_trains_the_lengths_of_rows_too():
    model = adapters.with_lora(toys.model(), Lora(use_dora=True))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    lengths = [name for name in trained if "lora_magnitude_vector" in name]
    assert len(lengths) == 14 and len(trained) == 3 * 14
    torch.testing.assert_close(logits(model), logits(toys.model()), atol=1e-5, rtol=1e-5)


WRITE = """import sys, toys
from pathlib import Path
from pipelines.engine import adapters, models
from pipelines.recipe.training import Lora
adapters.save(adapters.with_lora(toys.model(), Lora(rank=2)), Path(sys.argv[1]), "base")
"""


@pytest.mark.slow
@pytest.mark.long
def test_equal_adapters_have_equal_bytes_in_every_process(tmp_path):
    """peft keeps the targets in a set, whose order follows the process's own hashing."""
    contents = set()
    for seed in "123":
        command = [sys.executable, "-c", WRITE, str(tmp_path / seed)]
        subprocess.run(command, check=True, env=toys.environment(PYTHONHASHSEED=seed))
        contents.add(tuple((tmp_path / seed / name).read_bytes() for name in (ADAPTER_CONFIG, adapters.WEIGHTS)))
    assert len(contents) == 1
