"""bfloat16 copies for decoding: the numbers autocast would use, gone when decoding ends, and never stale."""

from __future__ import annotations

import pytest
import torch
import toys

from pipelines.engine.distribution import generator
from pipelines.engine.models import autocast
from pipelines.engine.policy import Policy
from pipelines.engine.rounded import RoundedWeights
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.settings import Sampling

CPU = torch.device("cpu")
IDS = torch.arange(5, 25)[None]


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma", "gpt2"])
def test_logits_are_those_of_autocast(family):
    model = toys.model(family)
    rounded = RoundedWeights(model, "bfloat16")
    with torch.no_grad(), autocast("bfloat16", CPU):
        expected = model(IDS).logits
        with rounded.in_place():
            logits = model(IDS).logits
    assert rounded.copies
    torch.testing.assert_close(logits, expected, atol=0, rtol=0)


def test_weights_are_put_back_also_after_an_error():
    model = toys.model()
    weights = dict(model.named_parameters(remove_duplicate=False))
    with pytest.raises(ZeroDivisionError), RoundedWeights(model, "bfloat16").in_place():
        kept = dict(model.named_parameters(remove_duplicate=False))
        assert sum(kept[name] is not weight for name, weight in weights.items()) > 10
        raise ZeroDivisionError
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is weight and weight.dtype == torch.float32 for name, weight in weights.items())


def test_float32_copies_nothing():
    rounded = RoundedWeights(toys.model(), "float32")
    with rounded.in_place():
        assert not rounded.copies


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text"])
def test_sampler_sees_new_weights_at_every_call(family):
    model = toys.model(family)
    sampling = Sampling(max_tokens=30)
    sampler, policy = TorchSampler(model, stop=[2], pad=0, dtype="bfloat16"), Policy(model, sampling, dtype="bfloat16")
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


def test_keys_are_stored_in_bfloat16():
    model = toys.model()
    sampler = TorchSampler(model, stop=[2], pad=0, dtype="bfloat16")
    dtypes = set()
    handle = model.model.layers[0].register_forward_hook(
        lambda layer, inputs, kwargs, output: dtypes.add(kwargs["past_key_values"].layers[0].keys.dtype),
        with_kwargs=True,
    )
    sampler.extend([[5, 6]] * 4, Sampling(max_tokens=5), generator(CPU, 1))
    handle.remove()
    assert dtypes == {torch.bfloat16}
