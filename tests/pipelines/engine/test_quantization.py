"""A base in four bits: stored once, read alike by all passes, and merged without being rounded again."""

from __future__ import annotations

import sys

import hybrid_toys
import pytest
import torch
import toys
from torch import nn

from pipelines.base.errors import ModelError
from pipelines.engine import adapters, quantization
from pipelines.recipe.training import Lora

LORA = Lora(rank=4, load_in_4bit=True)
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])
REASON = "bitsandbytes is not installed: pip install bitsandbytes"


@pytest.fixture
def bnb():
    return pytest.importorskip("bitsandbytes", reason=REASON)


def quantized(family="llama"):
    """A quantised model with adapters, every number of which has moved."""
    plain = hybrid_toys.model(family) if family in hybrid_toys.FAMILIES else toys.model(family)
    model = adapters.with_lora(plain, LORA).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.normal_(std=0.1)
    return model


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def matrices(model):
    return {n: m.weight.detach() for n, m in model.named_modules() if isinstance(m, nn.Linear) and "lora_" not in n}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "mistral", "deepseek_v3"])
def test_merged_is_what_was_trained(bnb, family):
    model, plain = quantized(family), toys.model(family)
    stored = [name for name, weight in matrices(model).items() if weight.dtype == torch.uint8]
    assert len(stored) == len(matrices(plain)) - 1, "all but the output head"
    assert {name for name, weight in model.named_parameters() if weight.requires_grad} == {
        name for name, _ in model.named_parameters() if "lora_" in name
    }
    before = logits(model)
    merged = quantization.merged(model)
    torch.testing.assert_close(logits(merged), before, atol=1e-5, rtol=1e-5)
    assert (logits(plain) - before).abs().max() > 0.05
    assert {name: p.shape for name, p in merged.named_parameters()} == {n: p.shape for n, p in plain.named_parameters()}
    assert {p.dtype for p in merged.parameters()} == {torch.float32}


def test_a_matrix_is_its_quantised_values_plus_the_adapter_rounded_once(bnb):
    model = adapters.with_lora(toys.model(), LORA)
    name = "model.layers.1.mlp.up_proj"
    layer = model.base_model.model.get_submodule(name)
    whole = toys.model().get_submodule(name).weight.detach()
    codes, state = bnb.functional.quantize_4bit(whole, quant_type="nf4", compress_statistics=True)
    expected = bnb.functional.dequantize_4bit(codes, state)
    assert 0 < (expected - whole).abs().max() < whole.abs().max() / 3
    with torch.no_grad():
        layer.lora_A["default"].weight.fill_(0.5)
        layer.lora_B["default"].weight.fill_(0.25)
    merged = quantization.merged(model).get_submodule(name).weight
    torch.testing.assert_close(merged, expected + 32 / 4 * 4 * 0.5 * 0.25, atol=1e-6, rtol=1e-6)


def test_a_layer_that_has_no_adapter_is_merged_too(bnb):
    model = adapters.with_lora(toys.model(), LORA.model_copy(update={"target_modules": ["q_proj"]}))
    before = logits(model)
    merged = quantization.merged(model)
    torch.testing.assert_close(logits(merged), before, atol=1e-5, rtol=1e-5)
    assert all(weight.dtype == torch.float32 for weight in matrices(merged).values())


def test_the_weights_in_four_bits_stay_as_they_are(bnb):
    """Through passes with gradient and without, in both modes."""
    model = quantized()
    before = {name: weight.clone() for name, weight in matrices(model).items()}
    values = []
    for training in (False, True, False):
        model.train(training)
        model(input_ids=IDS, labels=IDS).loss.backward()
        values.append(logits(model))
    assert all(torch.equal(weight, before[name]) for name, weight in matrices(model).items())
    assert torch.equal(values[0], values[1]) and torch.equal(values[0], values[2])


def test_it_is_decoded_as_it_is_scored(bnb):
    """Row by row with a cache, greedily: the tokens that a pass over the whole text would choose."""
    model = quantized()
    ids = toys.greedy(model, [5, 6, 7], 6)
    with torch.no_grad():
        chosen = model(input_ids=torch.tensor([[5, 6, 7, *ids]])).logits[0, 2:-1].argmax(-1)
    assert chosen.tolist() == ids


@pytest.mark.parametrize("family", ["gpt2", "gpt_oss"])
def test_families_whose_matrices_are_no_linear_layers_are_refused(bnb, family):
    with pytest.raises(ModelError, match=r"lora\.load_in_4bit: [\d,]+ of the [\d,]+ weights .* Leave it out\."):
        adapters.with_lora(toys.model(family), LORA)


def test_a_family_that_reads_a_matrix_itself_is_refused(bnb):
    with pytest.raises(ModelError, match=r"lora\.load_in_4bit: JambaForCausalLM cannot be computed .* Leave it out\."):
        adapters.with_lora(hybrid_toys.model("jamba"), LORA)


@pytest.mark.parametrize("family", ["lfm2", "kimi_linear", "olmo_hybrid"])
def test_merged_hybrids_are_what_was_trained(bnb, family):
    model = quantized(family)
    before = logits(model)
    torch.testing.assert_close(logits(quantization.merged(model)), before, atol=1e-4, rtol=1e-4)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ModelError, match=r"lora\.load_in_4bit: bitsandbytes cannot be imported .* Run: pip install .*"):
        adapters.with_lora(toys.model(), LORA)


def test_a_model_that_is_not_quantised_is_merged_as_before():
    model = adapters.with_lora(toys.model(), Lora(rank=2))
    before = logits(model.eval())
    torch.testing.assert_close(logits(quantization.merged(model)), before)
