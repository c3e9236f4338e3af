"""Activations in host memory: the gradients of passes that keep them where they compute, bit by bit."""

from __future__ import annotations

import copy
from typing import ClassVar

import pytest
import torch
import toys

from pipelines.contract.sampling import Sampling
from pipelines.engine import adapters, offload
from pipelines.engine.layout import best_layouts
from pipelines.engine.policy import Policy, without_dropout
from pipelines.recipe.training import Lora

TOKENS = torch.arange(4 * 24).reshape(4, 24) % 97 + 3
TOKENS[:, :8] = TOKENS[0, :8]
MASK = torch.zeros(4, 24, dtype=torch.bool)
MASK[:, 10:] = True


class Counted(offload.save_on_cpu):
    """torch's hooks, counting the bytes that they copy."""

    copied: ClassVar[dict[str, int]] = {}

    def __init__(self, **how) -> None:
        super().__init__(**how)
        copy_out, copy_back = self.pack_hook, self.unpack_hook
        self.pack_hook = lambda tensor: self.count("out", tensor, copy_out)
        self.unpack_hook = lambda packed: self.count("back", packed[1], lambda _: copy_back(packed))

    def count(self, way, tensor, hook):
        self.copied[way] = self.copied.get(way, 0) + tensor.numel() * tensor.element_size()
        return hook(tensor)


@pytest.fixture
def copied(monkeypatch):
    monkeypatch.setattr(offload, "save_on_cpu", Counted)
    monkeypatch.setattr(Counted, "copied", {})
    return Counted.copied


def gradients(model, dtype):
    policy = Policy(model, Sampling(), dtype=dtype)
    model.zero_grad()
    rows = torch.arange(4)
    for layout in best_layouts(TOKENS, MASK, rows, 96, allow_trees=True, allow_prefixes=False):
        logp, spread = policy.score(layout, TOKENS.flatten()[layout.target], entropy="gradient")
        (logp * layout.target.sin() + 0.1 * spread).sum().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("how", ["plain", "recomputed", "adapters"])
def test_gradients_are_those_of_passes_that_keep_all(copied, family, dtype, how):
    """Whole passes over shared prefixes, with recomputed blocks and with frozen matrices that autocast rounds."""
    model = toys.model(family).train()
    without_dropout(model)
    if how == "recomputed":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    other = copy.deepcopy(model)
    offload.offload_activations(getattr(other, other.base_model_prefix), torch.device("cpu"))
    if how == "adapters":
        both = []
        for network in (model, other):
            torch.manual_seed(1)
            both.append(adapters.with_lora(network, Lora(rank=4)).train())
        model, other = both
    expected, result = gradients(model, dtype), gradients(other, dtype)
    assert expected.keys() == result.keys() and expected
    assert all(torch.equal(expected[name], result[name]) for name in expected)
    assert any(gradient.abs().sum() > 0 for gradient in expected.values())
    assert copied["out"] > 0 and copied["back"] > 0, "none of it was kept on the host"


def test_what_is_copied_is_what_the_memory_plan_says(copied):
    """Within 15 %, of blocks that are kept and of blocks that are recomputed; weights are not copied."""
    for recomputed in (False, True):
        copied.clear()
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(
            "llama", vocab_size=100, hidden_size=128, intermediate_size=384, num_hidden_layers=6, num_attention_heads=8,
            num_key_value_heads=8,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_config(config).float().train()
        if recomputed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        offload.offload_activations(model.model, torch.device("cpu"))
        ids = torch.arange(512)[None] % 100
        model(input_ids=ids, use_cache=False).logits.logsumexp(-1).sum().backward()
        layer = 8 * 128 + 6 * 128 + 4 * 384
        values = (6 + 4) * 128 if recomputed else 6 * layer + (4 + 3 * 6) * 128
        assert copied["out"] == pytest.approx(512 * 4 * values, rel=0.15)


def test_a_pass_that_fails_leaves_no_hooks_behind(copied):
    """As where memory runs out: the pass that is tried again, and all others, are as before."""
    model = toys.model().train()
    offload.offload_activations(model.model, torch.device("cpu"))

    def fails(*_):
        raise RuntimeError("out of memory")

    broken = model.model.layers[1].register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        model(input_ids=TOKENS)
    broken.remove()
    copied.clear()
    weight = torch.ones(3, requires_grad=True)
    weight.exp().sum().backward()
    assert not copied
    model(input_ids=TOKENS).logits.sum().backward()
    assert copied["out"] == copied["back"]
