"""The sampler against transformers' own generate, and against the trainer."""

from __future__ import annotations

import pytest
import torch
import toys

from pipelines.contract.sampling import Sampling
from pipelines.data.records import Stop
from pipelines.engine.distribution import draw, generator, log_prob
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler

PREFIXES = [[5, 6, 7], [5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [5, 6, 7, 8]]
CPU = torch.device("cpu")


@pytest.mark.parametrize("family", toys.FAMILIES)
def test_greedy_tokens_are_those_of_generate(family):
    toys.check_greedy(TorchSampler(toys.model(family), stop=[2], pad=0), PREFIXES, 20)


@pytest.mark.parametrize("family", toys.FAMILIES)
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=16),
        Sampling(temperature=0.6, max_tokens=16),
        Sampling(temperature=1.3, top_p=0.8, max_tokens=16),
        Sampling(top_k=7, max_tokens=16),
        Sampling(min_p=0.1, temperature=0.9, max_tokens=16),
    ],
    ids=["plain", "cold", "top_p", "top_k", "min_p"],
)
@pytest.mark.few(16)
def test_sampler_is_trainer(family, sampling):
    model = toys.model(family)
    made = TorchSampler(model, stop=[2, 3], pad=2).extend(PREFIXES * 3, sampling, generator(CPU, 2), entropy=True)
    policy = Policy(model, sampling)
    for prefix, one in zip(PREFIXES * 3, made, strict=True):
        tokens = torch.tensor([prefix + one.tokens])
        mask = torch.zeros_like(tokens, dtype=torch.bool)
        mask[0, len(prefix) :] = True
        scored = policy.logp(tokens, mask, entropy="value")
        torch.testing.assert_close(scored.logp[mask], torch.tensor(one.logp), atol=2e-5, rtol=0)
        torch.testing.assert_close(scored.entropy[mask], torch.tensor(one.entropy), atol=2e-4, rtol=0)


@pytest.mark.parametrize("family", [*toys.FAMILIES, *toys.OTHERS])
def test_a_stream_is_the_completion_that_is_drawn_at_once(family):
    sampler = TorchSampler(toys.model(family), stop=[2, 3], pad=2)
    for prefix in PREFIXES[1:]:
        for sampling in (Sampling(temperature=0, max_tokens=12), Sampling(max_tokens=12)):
            (once,) = sampler.extend([prefix], sampling, generator(CPU, 7))
            assert [*sampler.stream(prefix, sampling, generator(CPU, 7))] == once.tokens
    sampler.context, greedy = 10, Sampling(temperature=0, max_tokens=9)
    assert 0 < len([*sampler.stream([5] * 7, greedy, generator(CPU, 7))]) <= 3
    assert [*sampler.stream([5] * 10, greedy, generator(CPU, 7))] == []


@pytest.mark.parametrize("family", toys.OTHERS)
def test_windows_sinks_and_compressed_keys(family):
    model, sampling = toys.model(family), Sampling(max_tokens=16)
    sampler = TorchSampler(model, stop=[2], pad=0)
    assert not sampler.plain
    toys.check_greedy(sampler, PREFIXES, 16)
    policy = Policy(model, sampling)
    completions = sampler.extend(PREFIXES, sampling, generator(CPU, 2))
    for prefix, completion in zip(PREFIXES, completions, strict=True):
        tokens = torch.tensor([prefix + completion.tokens])
        mask = torch.arange(tokens.shape[1])[None] >= len(prefix)
        scored = policy.logp(tokens, mask)
        torch.testing.assert_close(scored.logp[mask], torch.tensor(completion.logp), atol=2e-5, rtol=0)


BEGIN = list(range(20, 60))
COMMON = [p for tail in ([5], [6, 7], [8, 9, 10, 11], [6, 7, 8, 9, 10]) for p in [BEGIN + tail] * 3]


@pytest.mark.parametrize(
    ("group", "fixed"),
    [
        (1, False),
        (3, True),
        pytest.param(1, True, marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(3, False, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
@pytest.mark.parametrize("family", toys.FAMILIES)
def test_a_common_beginning_is_read_once(family, group, fixed):
    model = toys.model(family)
    widths = []
    model.get_input_embeddings().register_forward_pre_hook(lambda _, ids: widths.append(ids[0].shape))
    sampler = TorchSampler(model, stop=[2], pad=0, fixed=fixed)
    prefixes = COMMON if group == 3 else COMMON[::3]
    toys.check_greedy(sampler, prefixes, 20)
    assert widths[:2] == ([(1, 40), (4, 5)] if sampler.plain else [(4, 45), (4, 1)])
    policy = Policy(model, Sampling())
    for prefix, one in zip(prefixes, sampler.extend(prefixes, Sampling(max_tokens=20), generator(CPU, 1)), strict=True):
        tokens = torch.tensor([prefix + one.tokens])
        mask = torch.arange(tokens.shape[1])[None] >= len(prefix)
        scored = policy.logp(tokens, mask)
        torch.testing.assert_close(scored.logp[mask], torch.tensor(one.logp), atol=2e-5, rtol=0)


def test_a_beginning_that_is_a_whole_prompt():
    model = toys.model()
    sampler = TorchSampler(model, stop=[2], pad=0)
    prefixes = [BEGIN + BEGIN, BEGIN + BEGIN + [5], BEGIN + BEGIN]
    made = sampler.extend(prefixes, Sampling(temperature=0, max_tokens=9), generator(CPU, 1))
    assert made[0] == made[2]
    alone = [sampler.extend([p], Sampling(temperature=0, max_tokens=9), generator(CPU, 1))[0] for p in prefixes]
    assert [o.tokens for o in made] == [o.tokens for o in alone]


def test_stops():
    model = toys.model()
    ended = TorchSampler(model, stop=list(range(50)), pad=0).extend(
        [[5, 6]] * 20, Sampling(max_tokens=30), generator(CPU, 3)
    )
    assert {o.stop for o in ended} == {Stop.END}
    for one in ended:
        assert one.tokens[-1] < 50 and all(t >= 50 for t in one.tokens[:-1])
        assert len(one.logp) == len(one.tokens)
    cut = TorchSampler(model, stop=[2], pad=0).extend(
        [[5, 6]], Sampling(max_tokens=3, temperature=0), generator(CPU, 3)
    )
    assert cut[0].stop == Stop.LENGTH and len(cut[0].tokens) == 3


def test_context_limits():
    model = toys.model("gpt2")
    sampler = TorchSampler(model, stop=[], pad=0)
    near, full, empty = sampler.extend([[5] * 125, [5] * 128, []], Sampling(max_tokens=10), generator(CPU, 4))
    assert len(near.tokens) == 3 and near.stop == Stop.LENGTH
    assert full.stop == empty.stop == Stop.ERROR and full.tokens == []


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_long_prompt_beside_it_cuts_no_completion_short(family, fixed):
    model = toys.model(family)
    prompts, greedy = [[5] * 120, [6] * 20, [5] * 125] * 2, Sampling(temperature=0, max_tokens=30)
    sampler = TorchSampler(model, stop=[], pad=0, fixed=fixed)
    sampler.context = 128
    limits = [min(30, sampler.context - len(p)) for p in prompts]
    together = sampler.extend(prompts, greedy, generator(CPU, 4), entropy=True)
    assert [len(o.tokens) for o in together] == limits and {o.stop for o in together} == {Stop.LENGTH}
    alone = [sampler.extend([p], greedy, generator(CPU, 4))[0].tokens for p in prompts]
    assert [o.tokens for o in together] == alone


def test_chunks_and_batch_mates_do_not_change_greedy_answers():
    model = toys.model()
    alone = [
        TorchSampler(model, stop=[2], pad=0)
        .extend([p], Sampling(temperature=0, max_tokens=12), generator(CPU, 1))[0]
        .tokens
        for p in PREFIXES
    ]
    chunked = TorchSampler(model, stop=[2], pad=0, rows=3).extend(
        PREFIXES, Sampling(temperature=0, max_tokens=12), generator(CPU, 1)
    )
    assert alone == [o.tokens for o in chunked]


def test_draws_follow_the_distribution():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    sampling = Sampling(temperature=0.7, top_p=0.95)
    tokens, _ = draw(logits.expand(40_000, 4), sampling, generator(CPU, 5))
    seen = torch.bincount(tokens, minlength=4) / len(tokens)
    wanted = log_prob(logits.expand(4, 4)[:3], torch.arange(3), sampling).exp()
    torch.testing.assert_close(seen[:3], wanted, atol=0.01, rtol=0)
    assert seen[3] == 0


def test_same_generator_same_rollouts():
    model = toys.model()
    sampler = TorchSampler(model, stop=[2], pad=0)
    one, two = (sampler.extend(PREFIXES, Sampling(max_tokens=9), generator(CPU, 7)) for _ in range(2))
    assert one == two
    assert one != sampler.extend(PREFIXES, Sampling(max_tokens=9), generator(CPU, 8))
