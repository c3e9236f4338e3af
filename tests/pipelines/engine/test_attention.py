"""Prompts that are read once for all of their rows: the same answers as rows on their own."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.sampling import Sampling
from pipelines.engine import attention
from pipelines.engine import sampler as engine
from pipelines.engine.cache import Gaps, SlabCache, SlabLayer
from pipelines.engine.distribution import generator
from pipelines.engine.sampler import TorchSampler

CPU = torch.device("cpu")
GROUPS = [p for p in ([5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [15, 16, 17, 18]) for _ in range(6)]


@pytest.mark.parametrize("family", toys.FAMILIES)
@pytest.mark.few(3)
def test_greedy_tokens_are_those_of_generate(family):
    toys.check_greedy(TorchSampler(toys.model(family), stop=[2], pad=0), GROUPS, 20)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("stop", [[2], list(range(2, 30))], ids=["long", "ragged"])
def test_same_samples_as_rows_on_their_own(family, stop, monkeypatch):
    """Ragged ends make rows leave one by one, so prompts lose rows and are dropped."""
    model = toys.model(family)

    def drawn(share_from):
        monkeypatch.setattr(engine, "SHARE_FROM", share_from)
        return TorchSampler(model, stop=stop, pad=0).extend(GROUPS, Sampling(max_tokens=24), generator(CPU, 3))

    together, apart = drawn(2), drawn(1e9)
    assert [o.tokens for o in together] == [o.tokens for o in apart]
    for one, two in zip(together, apart, strict=True):
        torch.testing.assert_close(torch.tensor(one.logp), torch.tensor(two.logp), atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prompts_are_read_together(monkeypatch, dtype):
    seen = []
    real = attention.Prompts.attend
    monkeypatch.setattr(
        attention.Prompts, "attend", lambda self, *rest: (seen.append(len(self.owner)), real(self, *rest))[1]
    )
    sampler = TorchSampler(toys.model(), stop=[2], pad=0, dtype=dtype)
    sampler.extend(GROUPS, Sampling(max_tokens=5), generator(CPU, 1))
    assert len(seen) == 2 * 4 and min(seen) >= 3 and max(seen) <= 18
    seen.clear()
    sampler.extend(GROUPS[::6], Sampling(max_tokens=5), generator(CPU, 1))
    assert not seen, "with one row a prompt, rows are on their own"


@given(
    owners=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    own=st.integers(1, 5),
    pads=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    grouped=st.sampled_from([1, 2, 4]),
    start=st.integers(0, 1),
)
def test_one_softmax_over_prompt_and_own_tokens(owners, own, pads, grouped, start):
    draw = torch.Generator().manual_seed(len(owners))
    layer, cache = SlabLayer(), SlabCache.__new__(SlabCache)
    cache.layers = [layer]
    layer.update(*(torch.randn(5, 2, 4, 8, generator=draw) for _ in range(2)))
    whole = layer.keys.clone(), layer.values.clone()
    layer.set_prompts_aside(8, capacity=len(owners) + 5)
    prompts = attention.Prompts(Gaps(start, torch.tensor(pads)), 4)
    rows = torch.tensor(owners)
    layer.take(rows, 8, capacity=len(owners))
    prompts.follow(rows, cache)
    keys, values = (torch.randn(len(owners), 2, own, 8, generator=draw) for _ in range(2))
    layer.update(keys, values)
    query = torch.randn(len(owners), 2 * grouped, 1, 8, generator=draw)
    said = prompts.attend(query, layer, 0.3)
    spot = torch.arange(4)
    prompt = (spot < start) | (spot >= start + torch.tensor(pads)[rows, None])
    seen = torch.cat([prompt, torch.ones(len(rows), own).bool()], 1)
    oracle = torch.nn.functional.scaled_dot_product_attention(
        query, torch.cat([whole[0][rows], keys], 2), torch.cat([whole[1][rows], values], 2),
        attn_mask=seen[:, None, None], scale=0.3, enable_gqa=True,
    )  # fmt: skip
    torch.testing.assert_close(said, oracle.transpose(1, 2), atol=1e-5, rtol=1e-5)
    assert len(layer.prompt_keys) == len(set(owners))


def test_unknown_attention_is_refused():
    class Changed(SlabLayer):
        def update(self, *args, **kwargs):
            return tuple(x.clone() for x in super().update(*args, **kwargs))

    model = toys.model()
    cache = SlabCache(model)
    model(torch.tensor([[5, 6]]), past_key_values=cache, use_cache=True)
    cache.set_prompts_aside(4, capacity=1)
    cache.layers[1].__class__ = Changed
    prompts = attention.Prompts(Gaps(0, torch.tensor([0])), 2)
    with attention.sharing(model, cache, prompts), pytest.raises(RuntimeError, match="LlamaAttention is one that this"):
        model(torch.tensor([[7]]), position_ids=torch.tensor([[2]]), past_key_values=cache, use_cache=True)
    assert model.config._attn_implementation == "sdpa"
