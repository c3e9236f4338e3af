"""Copies of matrices for decoding: the numbers that training multiplies by, gone when decoding ends, and never stale."""

from __future__ import annotations

import pytest
import torch
import toys

from pipelines.contract.sampling import Sampling
from pipelines.engine import adapters, decoding_weights
from pipelines.engine.decoding_weights import DecodingWeights
from pipelines.engine.distribution import generator
from pipelines.engine.models import autocast
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.training import Lora

CPU = torch.device("cpu")
IDS = torch.arange(5, 25)[None]
LONG = decoding_weights.PACKED_STEPS
PACKS_BFLOAT16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN packs no bfloat16 matrices on this CPU (it wants AVX-512)",
)
BOTH = pytest.mark.parametrize("packed", [False, pytest.param(True, marks=PACKS_BFLOAT16)])


@pytest.fixture
def no_smallest(monkeypatch):
    """Pack float32 matrices of any size."""
    monkeypatch.setattr(decoding_weights, "PACKED_FROM", 0)


@BOTH
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma", "gpt2"])
def test_logits_are_those_of_autocast(family, packed):
    model = toys.model(family)
    weights = DecodingWeights(model, "bfloat16", packed=packed)
    with torch.no_grad(), autocast("bfloat16", CPU):
        expected = model(IDS).logits
        with weights.in_place(1):
            logits = model(IDS).logits
    assert weights.blocks if packed else weights.copies and not weights.blocks
    torch.testing.assert_close(logits, expected, atol=0, rtol=0)


@BOTH
def test_weights_stored_in_bfloat16_are_not_copied(packed):
    """Packed they are, in another layout; the numbers are the same."""
    model = toys.model().to(torch.bfloat16)
    weights = DecodingWeights(model, "bfloat16", packed=packed)
    with torch.no_grad(), autocast("bfloat16", CPU):
        expected = model(IDS).logits
        with weights.in_place(1):
            logits = model(IDS).logits
    assert not weights.copies and bool(weights.blocks) == packed
    torch.testing.assert_close(logits, expected, atol=0, rtol=0)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_packed_float32_differs_by_rounding_alone(family, no_smallest):
    """Also through adapters, whose base matrices are packed like any others."""
    for model in (toys.model(family), adapters.with_lora(toys.model(family), Lora(rank=2))):
        weights = DecodingWeights(model, "float32", packed=True)
        with torch.no_grad():
            expected = model(IDS).logits
            with weights.in_place(LONG):
                logits = model(IDS).logits
                assert len(weights.blocks) > 10
        assert not weights.blocks, "as large as the model"
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@BOTH
def test_weights_are_put_back_also_after_an_error(packed):
    model = toys.model()
    weights = dict(model.named_parameters(remove_duplicate=False))
    with pytest.raises(ZeroDivisionError), DecodingWeights(model, "bfloat16", packed=packed).in_place(1):
        kept = dict(model.named_parameters(remove_duplicate=False))
        changed = sum(kept[name] is not weight for name, weight in weights.items())
        changed += sum("forward" in module.__dict__ for module in model.modules())
        assert changed > 10
        raise ZeroDivisionError
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is weight and weight.dtype == torch.float32 for name, weight in weights.items())
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_float32_copies_nothing_that_does_not_pay(monkeypatch):
    model = toys.model()
    for packed, steps in ((False, LONG), (True, LONG), (True, LONG - 1)):
        weights = DecodingWeights(model, "float32", packed=packed)
        with weights.in_place(steps):
            assert not weights.copies and not weights.blocks, "a toy's matrices are small"
        monkeypatch.setattr(decoding_weights, "PACKED_FROM", 0 if steps < LONG else 1 << 17)


@PACKS_BFLOAT16
def test_matrices_that_are_somebody_else_s_are_left_alone():
    model = toys.model()
    owned = model.model.layers[0].mlp.down_proj
    owned.forward = forward = type(owned).forward.__get__(owned)
    weights = DecodingWeights(model, "bfloat16", packed=True)
    with weights.in_place(1):
        assert owned.forward is forward and owned.weight.dtype == torch.bfloat16, "rounded, not packed"
    assert owned.forward is forward and owned.weight.dtype == torch.float32


@pytest.mark.parametrize(
    "capability, wanted", [("AVX512", True), ("AVX512_BF16", True), ("AVX2", False), ("DEFAULT", False)]
)
def test_packing_is_for_cpus_with_avx512(monkeypatch, capability, wanted):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    assert decoding_weights.packs(CPU) == wanted
    assert not decoding_weights.packs(torch.device("cuda"))


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text"])
@BOTH
def test_sampler_sees_new_weights_at_every_call(family, packed):
    model = toys.model(family)
    sampling = Sampling(max_tokens=30)
    sampler, policy = TorchSampler(model, stop=[2], pad=0, dtype="bfloat16"), Policy(model, sampling, dtype="bfloat16")
    sampler.weights.packed = packed
    prefixes = [[5, 6, 7]] * 12 + [[8, 9, 10, 11]] * 12
    for seed in range(2):
        differences = []
        for prefix, completion in zip(prefixes, sampler.extend(prefixes, sampling, generator(CPU, seed)), strict=True):
            tokens = torch.tensor([prefix + completion.tokens])
            mask = torch.arange(tokens.shape[1])[None] >= len(prefix)
            differences.append(policy.logp(tokens, mask).logp.detach()[mask] - torch.tensor(completion.logp))
        error = torch.cat(differences).abs()
        assert error.mean() < 0.02 and error.max() < 0.3
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.flip(0))


def test_sampler_packs_for_long_answers_in_float32(no_smallest):
    model = toys.model()
    packed_at: dict[int, bool] = {}
    for steps in (LONG - 1, LONG):
        sampler = TorchSampler(model, stop=[2], pad=0)
        sampler.weights.packed = True
        layer = model.model.layers[0].mlp.down_proj
        handle = layer.register_forward_hook(
            lambda module, inputs, output, steps=steps: packed_at.update({steps: "forward" in module.__dict__})
        )
        sampler.extend([[5, 6]], Sampling(max_tokens=steps), generator(CPU, 1))
        handle.remove()
    assert packed_at == {LONG - 1: False, LONG: True}


@pytest.mark.parametrize("count, dtype", [(1, torch.bfloat16), (4, torch.float32)])
def test_keys_are_rounded_to_bfloat16(count, dtype):
    """Where rows share a prompt they are held in float32: what is read together is not rounded again."""
    model = toys.model()
    sampler = TorchSampler(model, stop=[2], pad=0, dtype="bfloat16")
    seen: list[torch.Tensor] = []
    handle = model.model.layers[0].register_forward_hook(
        lambda layer, inputs, kwargs, output: seen.append(kwargs["past_key_values"].layers[0].keys.clone()),
        with_kwargs=True,
    )
    sampler.extend([[5, 6]] * count, Sampling(max_tokens=5), generator(CPU, 1))
    handle.remove()
    assert [keys.dtype for keys in seen[1:]] == [dtype] * (len(seen) - 1) and len(seen) == 5
    assert all(torch.equal(keys, keys.bfloat16().to(keys.dtype)) for keys in seen)
