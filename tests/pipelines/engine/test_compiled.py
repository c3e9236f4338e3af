"""What is compiled on a GPU, compiled here on the CPU, or as it is: the same numbers."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import compiled, distribution
from pipelines.engine.compiled import compile_blocks, fused
from pipelines.engine.distribution import generator
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler


@pytest.fixture
def everywhere(monkeypatch):
    """What would be compiled on a GPU is compiled on the CPU."""
    monkeypatch.setattr(compiled, "_failed", [])
    monkeypatch.setattr(compiled, "_block_classes", {})
    monkeypatch.setattr(compiled, "compiles", lambda tensor: not compiled._failed)
    yield
    torch._dynamo.reset()


@given(
    st.integers(1, 900),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([1, 8, 60]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_a_token_found_by_blocks_is_that_of_the_whole_sum(words, temperature, spread, seed, truncated):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(12, words, generator=draw) * spread
    if truncated:
        logits[torch.rand(12, words, generator=draw) < 0.7] = float("-inf")
        logits[:, words // 2] = 0.0
    point = torch.rand(12, 1, generator=draw)
    point[0], point[1] = 0.0, 1 - 2**-24
    token, logp = compiled.pick_by_blocks(logits, temperature, point)
    wanted, wanted_logp = distribution._pick(logits, Sampling(temperature=temperature), point)
    # a point on the edge of two tokens may fall to either by a rounding of the sums
    probability = (logits / temperature).softmax(-1)
    upper = probability.double().cumsum(-1)
    edge = (upper - point.double()).abs().amin(-1) < 1e-5
    assert bool(((token == wanted) | edge).all())
    assert bool((probability.gather(-1, token[:, None]) > 0).all())
    torch.testing.assert_close(logp[token == wanted], wanted_logp[token == wanted], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_and_their_gradient_are_those_of_the_passes_in_chunks(dtype):
    draw = torch.Generator().manual_seed(3)
    logits = (torch.randn(40, 700, generator=draw) * 4).to(dtype)
    tokens, gradient = torch.randint(0, 700, (40,), generator=draw), torch.randn(40, generator=draw)
    leaf = logits.clone().requires_grad_()
    logp, entropy = distribution.log_prob_and_entropy(leaf * 1, tokens, Sampling(temperature=0.7))
    logp.backward(gradient)
    found_logp, found_entropy, normaliser = compiled.scores(logits, tokens, 0.7)
    torch.testing.assert_close(found_logp, logp.detach())
    torch.testing.assert_close(found_entropy, entropy)
    compiled.write_gradient(logits, tokens, normaliser, gradient / 0.7, 0.7)
    torch.testing.assert_close(logits, leaf.grad)


def test_blocks_keep_their_names_and_are_copied(everywhere, tmp_path):
    plain = toys.model()
    network = copy.deepcopy(plain)
    compile_blocks(network)
    compile_blocks(network)  # a second time changes nothing
    assert network.state_dict().keys() == plain.state_dict().keys()
    assert [name for name, _ in network.named_modules()] == [name for name, _ in plain.named_modules()]
    block, twin = network.model.layers[0], copy.deepcopy(network).model.layers[0]
    assert type(block) is type(twin) is not type(plain.model.layers[0])
    assert (
        isinstance(block, type(plain.model.layers[0])) and type(block).__name__ == type(plain.model.layers[0]).__name__
    )
    network.save_pretrained(tmp_path)
    again = type(plain).from_pretrained(tmp_path)
    assert type(again.model.layers[0]) is type(plain.model.layers[0])


def counted(monkeypatch) -> list[int]:
    """Calls of compiled functions, which run as they are."""
    calls: list[int] = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *a, **k: (calls.append(1), function(*a, **k))[1])
    return calls


def test_what_is_compiled_and_what_is_not(everywhere, monkeypatch):
    calls = counted(monkeypatch)
    network = toys.model()
    compile_blocks(network)
    policy = Policy(network, Sampling())
    assert not calls, "the check of the head runs once"
    tokens = torch.arange(3, 23)[None]
    policy.logp(tokens, tokens > 5)
    assert len(calls) == len(policy.layers)
    prompts, sampling = [[5, 6, 7], [8, 9]], Sampling(max_tokens=4)
    calls.clear()
    TorchSampler(network, stop=[], pad=0, fixed=False).extend(prompts, sampling, generator(policy.device, 0))
    assert not calls, "caches that grow"
    TorchSampler(network, stop=[], pad=0, fixed=True).extend(prompts, sampling, generator(policy.device, 0))
    assert len(calls) == 3 * len(policy.layers), "three steps after the prompts"
    calls.clear()
    policy.logp(tokens[:, : compiled.SMALL_PASS - 1], tokens[:, : compiled.SMALL_PASS - 1] > 5)
    assert not calls, "a small pass"


def test_where_compiling_fails_all_runs_as_it_is(everywhere, monkeypatch, caplog):
    def broken(function, **_):
        def call(*_, **__):
            raise torch._dynamo.exc.InternalTorchDynamoError("no C compiler\nand a long trace")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    double = fused(lambda tensor: tensor * 2)
    with caplog.at_level(logging.WARNING):
        assert [double(torch.ones(1)).item() for _ in range(2)] == [2.0, 2.0]
    assert [record.getMessage() for record in caplog.records] == [
        "torch.compile failed, so the GPU is used less well: InternalTorchDynamoError: no C compiler"
    ]


def test_other_errors_are_not_hidden(everywhere, monkeypatch):
    def full(tensor):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    with pytest.raises(torch.OutOfMemoryError):
        fused(full)(torch.ones(1))


def test_large_models_are_compiled_unless_the_recipe_says_otherwise():
    auto, yes, no = (
        Model.model_validate({"path": "x", **more}) for more in ({}, {"compile": True}, {"compile": False})
    )
    assert [auto.compiles(99_999_999, 1), auto.compiles(100_000_000, 1), auto.compiles(10**9, 2)] == [
        False,
        True,
        False,
    ]
    assert yes.compiles(1, 2) and not no.compiles(10**12, 1)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3", marks=pytest.mark.long)])
def test_compiled_blocks_give_the_numbers_of_plain_ones(everywhere, family):
    """Log-probabilities and gradients of padded rows and of rows under a mask, and greedy answers in fixed steps."""
    plain = toys.model(family)
    network = copy.deepcopy(plain)
    compile_blocks(network)
    tokens = torch.randint(3, 100, (5, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for row in range(5):
        mask[row, 4 : 20 - 2 * row] = True
    found = []
    for model in (plain, network):
        logp = Policy(model, Sampling()).logp(tokens, mask).logp
        logp[mask].sum().backward()
        found.append((logp.detach(), torch.cat([weight.grad.flatten() for weight in model.parameters()])))
    torch.testing.assert_close(found[1][0], found[0][0], atol=2e-5, rtol=0)
    assert (found[1][1] - found[0][1]).norm() < 1e-5 * found[0][1].norm()
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12], [5, 6, 7]]
    toys.check_greedy(TorchSampler(network, stop=[], pad=0, fixed=True), prompts, 12)
    assert not compiled._failed
