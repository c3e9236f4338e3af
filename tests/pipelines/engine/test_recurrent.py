"""Families that keep a recurrent state: sampled log-probabilities are those of a plain forward pass, for ragged prompts, whatever
rows are dropped, branched and copied on the way."""

from __future__ import annotations

import hybrid_toys
import pytest
import torch
import toys

from pipelines.base.errors import ModelError
from pipelines.contract.sampling import Sampling
from pipelines.engine import guided, recurrent
from pipelines.engine.cache import SlabCache
from pipelines.engine.distribution import generator
from pipelines.engine.masks import MaskForm, keeps_state
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler

CPU = torch.device("cpu")
FAST = ("qwen3_next", "nemotron_h", "falcon_h1", "lfm2", "mamba")
"""Families of the fast tests: one of each kind of state."""
IN_CI = ("qwen3_5_text", "zamba2")
"""Of the slow tests, two of the others."""
FAMILIES = [
    *FAST,
    *(pytest.param(name, marks=pytest.mark.slow) for name in IN_CI),
    *(
        pytest.param(name, marks=[pytest.mark.slow, pytest.mark.long])
        for name in hybrid_toys.FAMILIES
        if name not in FAST + IN_CI
    ),
]
RAGGED = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 11, 12, 13, 14], [40], [20, 21, 22, 23, 24, 25], [50, 51, 52]]
PROMPTS = [prompt for prompt in RAGGED for _ in range(4)]


def plain_log_probs(model, tokens: list[int], start: int, temperature: float) -> torch.Tensor:
    """Of the tokens from `start` on, each conditioned on all before it: one row, no padding, no cache."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[start - 1 :, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_log_probs_are_those_of_a_plain_pass(family):
    """A third of all tokens ends a row, so that rows are dropped at many steps."""
    model, sampling = hybrid_toys.model(family), Sampling(max_tokens=24, temperature=0.8)
    sampler = TorchSampler(model, stop=list(range(2, 96, 16)), pad=0)
    assert not sampler.plain and sampler.fixed is None
    completions = sampler.extend(PROMPTS, sampling, generator(CPU, 3))
    lengths = {len(one.tokens) for one in completions}
    assert len(lengths) > 4 and max(lengths) > 9  # longer than a chunk of the scans
    for prompt, one in zip(PROMPTS, completions, strict=True):
        expected = plain_log_probs(model, prompt + one.tokens, len(prompt), 0.8)
        torch.testing.assert_close(torch.tensor(one.logp), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_do_not_depend_on_neighbours(family):
    model, sampling = hybrid_toys.model(family), Sampling(max_tokens=12, temperature=0)
    sampler = TorchSampler(model, stop=[2], pad=0)
    together = [one.tokens for one in sampler.extend(RAGGED, sampling, None)]
    assert together == [sampler.extend([prompt], sampling, None)[0].tokens for prompt in RAGGED]
    assert list(sampler.stream(RAGGED[1], sampling, generator(CPU, 1))) == together[1]
    assert together[1] == toys.greedy(model, RAGGED[1], 12)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_taken_and_copied_by_index_go_on_like_rows_read_afresh(family):
    """Row 1 is copied twice, then rows 3, 0 and 3 again are kept: each continues its own text."""
    model = hybrid_toys.model(family)
    name = guided.cache_argument(model)
    texts = [[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
    cache = SlabCache(model)

    def read(tokens: list[list[int]], position: int) -> torch.Tensor:
        ids = torch.tensor(tokens)
        places = torch.arange(position, position + ids.shape[1]).expand(ids.shape)
        with torch.no_grad():
            return model(input_ids=ids, position_ids=places, use_cache=True, **{name: cache}).logits[:, -1]

    read(texts, 0)
    cache.take(torch.arange(3), 8, capacity=8)
    cache.fork(torch.tensor([1, 1]))
    texts += [texts[1], texts[1]]
    texts = [[*text, 20 + i] for i, text in enumerate(texts)]
    read([[text[-1]] for text in texts], 4)
    cache.take(torch.tensor([3, 0, 3]), 8, capacity=8)
    texts = [[*texts[i], 30 + place] for place, i in enumerate([3, 0, 3])]
    branched = read([[text[-1]] for text in texts], 5)
    for text, logits in zip(texts, branched, strict=True):
        with torch.no_grad():
            fresh = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
        torch.testing.assert_close(logits, fresh, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_the_left_leaves_nothing_where_it_is_allowed(family):
    """What `PADDING_STAYS_OUT` claims; prompts of the others are never padded."""
    model = hybrid_toys.model(family)
    if not recurrent.padding_stays_out(model):
        sampler = TorchSampler(model, stop=[2], pad=0, rows=3)
        chunks = list(sampler._chunks(list(range(len(PROMPTS))), PROMPTS))
        assert all(len({len(PROMPTS[i]) for i in chunk}) == 1 and len(chunk) <= 3 for chunk in chunks)
        assert sorted(i for chunk in chunks for i in chunk) == list(range(len(PROMPTS)))
        return
    sampler = TorchSampler(model, stop=[2], pad=0)
    assert list(sampler._chunks(list(range(20)), PROMPTS)) == [list(range(20))]
    sampling = Sampling(max_tokens=8, temperature=0)
    other = TorchSampler(model, stop=[2], pad=77)
    for one, two in zip(sampler.extend(RAGGED, sampling, None), other.extend(RAGGED, sampling, None), strict=True):
        assert one.tokens == two.tokens
        torch.testing.assert_close(torch.tensor(one.logp), torch.tensor(two.logp), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_too(family):
    """Rounding of single tokens is larger in families with experts, whose routers may choose others."""
    model, sampling = hybrid_toys.model(family), Sampling(max_tokens=8)
    sampler = TorchSampler(model, stop=[2], pad=0, dtype="bfloat16")
    policy = Policy(model, sampling, dtype="bfloat16")
    differences = []
    for prompt, one in zip(RAGGED, sampler.extend(RAGGED, sampling, generator(CPU, 3)), strict=True):
        tokens = torch.tensor([prompt + one.tokens])
        mask = torch.arange(tokens.shape[1])[None] >= len(prompt)
        differences.append(policy.logp(tokens, mask).logp[mask].detach() - torch.tensor(one.logp))
    assert torch.cat(differences).abs().mean() < 0.05


@pytest.mark.parametrize("family", FAMILIES)
def test_training_passes_are_padded_rows(family):
    """Trailing padding changes no log-probability and no gradient, and there are no masks of ours."""
    model = hybrid_toys.model(family)
    policy = Policy(model, Sampling())
    assert keeps_state(policy.config) and MaskForm.of(policy.config) is None
    assert not policy.takes_masks and not policy.takes_prefixes
    rows = [[*prompt, 60, 61, 62] for prompt in RAGGED]
    tokens = torch.full((len(rows), 16), 77)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], mask[i, len(row) - 3 : len(row)] = torch.tensor(row), True
    together = policy.logp(tokens, mask).logp
    for i, row in enumerate(rows):
        alone = policy.logp(torch.tensor([row]), mask[i : i + 1, : len(row)]).logp
        torch.testing.assert_close(together[i, : len(row)], alone[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("rwkv", {"num_hidden_layers": 2}),
        ("xlstm", {"num_hidden_layers": 2, "num_heads": 4}),
        ("recurrent_gemma", {"num_hidden_layers": 3, "lru_width": 32, "num_attention_heads": 4}),
        ("minimax", {"num_hidden_layers": 2, "num_attention_heads": 4, "num_local_experts": 2, "head_dim": 8}),
    ],
)
def test_states_outside_of_a_dynamic_cache_are_refused(family, config):
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **hybrid_toys.SIZES | config))
    with pytest.raises(ModelError, match="a cache of its own"):
        TorchSampler(model, stop=[2], pad=0)
