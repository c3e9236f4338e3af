"""Decoding in steps of fixed shapes: the same answers, and nothing in a step that a CUDA graph could not hold."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch
import toys
from torch.utils._python_dispatch import TorchDispatchMode

from pipelines.contract.sampling import AdaptiveTemperature, Sampling
from pipelines.data.records import Stop
from pipelines.engine import fixed
from pipelines.engine.distribution import generator
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler

CPU = torch.device("cpu")
PLAIN = ["llama", "qwen2", "qwen3", "gemma", "gpt2"]
PREFIXES = [p for p in ([5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [15, 16, 17, 18]) for _ in range(6)]
SAMPLINGS = {
    "greedy": Sampling(temperature=0, max_tokens=40),
    "plain": Sampling(max_tokens=40),
    "cut": Sampling(temperature=1.3, top_p=0.9, top_k=40, min_p=0.01, max_tokens=40),
    "adaptive": Sampling(max_tokens=40, adaptive=AdaptiveTemperature(tau=0.2, pivot=0.5, top=1.0, bottom=2.0)),
}


@pytest.mark.parametrize("family", PLAIN)
def test_greedy_tokens_are_those_of_generate(family):
    toys.check_greedy(TorchSampler(toys.model(family), stop=[2], pad=0, fixed=True), PREFIXES, 40)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_sampler_is_trainer(sampling, dtype):
    model, ends = toys.model("qwen2"), set(range(2, 12))
    sampler = TorchSampler(model, stop=sorted(ends), pad=2, dtype=dtype, fixed=True)
    policy = Policy(model, sampling, dtype=dtype)
    bound = 2e-5 if dtype == "float32" else 0.3
    for _ in range(2):
        made = sampler.extend(PREFIXES, sampling, generator(CPU, 2), entropy=True)
        assert sampler.fixed is not None
        assert len({len(one.tokens) for one in made}) > (1 if sampling.temperature == 0 else 3)
        for prefix, one in zip(PREFIXES, made, strict=True):
            assert one.stop == (Stop.END if one.tokens[-1] in ends else Stop.LENGTH)
            assert not ends & set(one.tokens[:-1])
            tokens = torch.tensor([prefix + one.tokens])
            mask = torch.zeros_like(tokens, dtype=torch.bool)
            mask[0, len(prefix) :] = True
            scored = policy.logp(tokens, mask, entropy="value")
            if sampling.temperature == 0:
                assert sum(one.logp) == pytest.approx(
                    float(scored.logp.detach()[mask].sum()), abs=bound * len(one.tokens)
                )
                continue
            torch.testing.assert_close(scored.logp[mask], torch.tensor(one.logp), atol=bound, rtol=0)
            torch.testing.assert_close(scored.entropy[mask], torch.tensor(one.entropy), atol=10 * bound, rtol=0)
        with torch.no_grad():  # the next call must see new weights, also where it keeps rounded copies
            for weight in model.parameters():
                weight.copy_(weight.flip(0))


def test_draws_follow_the_distribution():
    model = toys.model(vocab=12)
    with torch.no_grad():
        wanted = model(torch.tensor([[5, 6]])).logits[0, -1].softmax(-1)
    made = TorchSampler(model, stop=[], pad=0, rows=4096, fixed=True).extend(
        [[5, 6]] * 4000, Sampling(max_tokens=1), generator(CPU, 5)
    )
    seen = torch.bincount(torch.tensor([one.tokens[0] for one in made]), minlength=12) / 4000
    torch.testing.assert_close(seen, wanted, atol=0.03, rtol=0)


def test_same_generator_same_rollouts_whatever_ran_before():
    model = toys.model()
    fresh, used = (TorchSampler(model, stop=[2], pad=0, fixed=True) for _ in range(2))
    used.extend([[9] * 60] * 30, Sampling(max_tokens=30), generator(CPU, 1))
    one, two = (s.extend(PREFIXES, Sampling(max_tokens=30), generator(CPU, 7)) for s in (fresh, used))
    assert [o.tokens for o in one] == [o.tokens for o in two]
    used.release()
    assert used.extend(PREFIXES, Sampling(max_tokens=30), generator(CPU, 7)) == one


def test_rows_that_are_done_make_room(monkeypatch):
    seen = []
    real = fixed.FixedDecoder._forward_and_draw
    monkeypatch.setattr(
        fixed.FixedDecoder,
        "_forward_and_draw",
        lambda self, rows, *rest: (seen.append(rows), real(self, rows, *rest))[1],
    )
    TorchSampler(toys.model(), stop=list(range(2, 8)), pad=0, fixed=True).extend(
        [[5, 6]] * 100, Sampling(max_tokens=90), generator(CPU, 1)
    )
    assert seen[0] >= 96 and seen[-1] == 8 and seen == sorted(seen, reverse=True)
    assert all(seen.count(rows) % fixed.EVERY == 0 for rows in set(seen) - {seen[-1]})


def test_graphs_are_recorded_once_and_replayed(monkeypatch):
    """Recording stood in for: a recorded step has not run, and a replay runs it."""
    made = []

    class Recorded:
        def __init__(self, run):
            self.replay = run
            made.append(run.args[:2])

    monkeypatch.setattr(fixed, "warm_up", lambda run: [run() for _ in range(fixed.WARM)])
    monkeypatch.setattr(fixed, "record", lambda run, other: Recorded(run))
    model = toys.model()
    plain, graphed = (TorchSampler(model, stop=list(range(2, 8)), pad=0, fixed=True) for _ in range(2))
    graphed.fixed.captures = True
    for seed in range(3):
        one, two = (
            s.extend([[5, 6], [7, 8, 9]] * 50, Sampling(max_tokens=60), generator(CPU, seed), entropy=True)
            for s in (plain, graphed)
        )
        assert one == two
    assert len(made) == len(set(made)), "a shape is recorded once, also over calls"
    made.clear()
    graphed.extend([[5] * 100] * 200, Sampling(max_tokens=60), generator(CPU, 1))
    assert {wide for _, wide in made} == {128, 256} and max(rows for rows, _ in made) > 96


def test_graphs_know_no_token_limit_and_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(fixed, "warm_up", lambda run: None)
    monkeypatch.setattr(fixed, "record", lambda run, other: SimpleNamespace(replay=run))
    monkeypatch.setattr(fixed, "MOST_GRAPHS", 3)
    sampler = TorchSampler(toys.model(), stop=[], pad=0, fixed=True)
    sampler.fixed.captures = True
    for limit in (20, 9, 14):
        sampler.extend([[5, 6]] * 8, Sampling(max_tokens=limit), generator(CPU, 1))
    assert len(sampler.fixed.graphs) == 1
    for number in range(1, 6):
        sampler.extend([[5, 6]] * 8, Sampling(temperature=number, max_tokens=9), generator(CPU, 1))
    assert 1 <= len(sampler.fixed.graphs) <= 3


def test_no_step_keeps_rounded_weights():
    """Autocast would keep them until the call ends, and a graph would read that memory in the calls that follow."""
    model, seen = toys.model(), []
    sampler = TorchSampler(model, stop=[], pad=0, dtype="bfloat16", fixed=True)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_cache_enabled()))
    sampler.extend([[5, 6]], Sampling(max_tokens=2), generator(CPU, 1))
    assert seen[: len(seen) // 2] == [True] * (len(seen) // 2), "reading the prompt may keep them"
    assert seen[len(seen) // 2 :] == [False] * (len(seen) // 2)


def test_a_capture_that_fails_gives_the_stream_back(monkeypatch):
    current = ["before"]

    @contextlib.contextmanager
    def capture(graph, *, pool, stream, capture_error_mode):  # as PyTorch's, which does not go back
        current[0] = stream
        yield

    def fails():
        assert current == ["beside"]
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(fixed, "side_stream", lambda: "beside")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: current.__setitem__(0, stream))
    with pytest.raises(RuntimeError, match="not permitted"):
        fixed.record(fails, None)
    assert current == ["before"]


def test_context_limits():
    sampler = TorchSampler(toys.model("gpt2"), stop=[], pad=0, fixed=True)
    near, full = sampler.extend([[5] * 125, [5] * 128], Sampling(max_tokens=10), generator(CPU, 4))
    assert len(near.tokens) == 3 and near.stop == Stop.LENGTH
    assert full.stop == Stop.ERROR and full.tokens == []


def test_windows_are_left_to_the_other_loop():
    assert TorchSampler(toys.model("gemma3_text"), stop=[], pad=0, fixed=True).fixed is None
    assert TorchSampler(toys.model(), stop=[], pad=0).fixed is None


def test_failure_falls_back(monkeypatch, caplog):
    def fails(self, *_):
        raise RuntimeError("no graph today")

    monkeypatch.setattr(fixed.FixedDecoder, "_forward_and_draw", fails)
    model = toys.model()
    sampler = TorchSampler(model, stop=[2], pad=0, fixed=True)
    made = sampler.extend(PREFIXES, SAMPLINGS["greedy"], generator(CPU, 1))
    assert "without CUDA graphs, because they failed: no graph today" in caplog.text and sampler.fixed is None
    assert made == TorchSampler(model, stop=[2], pad=0).extend(PREFIXES, SAMPLINGS["greedy"], generator(CPU, 1))


WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "unique", "is_nonzero", "item", "equal")


class NoWaiting(TorchDispatchMode):
    """Refuses operations after which the host would have to know a value."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        assert name not in WAITS, f"{name} waits for the device"
        if name in ("index", "index_put_"):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "a mask as index waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", PLAIN)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_no_step_waits_for_the_device(family, sampling, monkeypatch):
    real = fixed.FixedDecoder._forward_and_draw

    def watched(self, *args):
        with NoWaiting():
            real(self, *args)

    monkeypatch.setattr(fixed.FixedDecoder, "_forward_and_draw", watched)
    sampler = TorchSampler(toys.model(family), stop=[2, 3], pad=0, fixed=True)
    sampler.extend(PREFIXES, sampling, generator(CPU, 1), entropy=True)
    assert sampler.fixed is not None


@pytest.mark.parametrize("family", PLAIN)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_step_stays_on_its_device(family, sampling):
    """A step on a device without values: a tensor made elsewhere, or a value asked for, is an error there."""
    model = toys.model(family)
    sampler = TorchSampler(model, stop=[2, 3], pad=0, fixed=True)
    sampler.extend(PREFIXES, sampling, generator(CPU, 1))
    decoder, away = sampler.fixed, torch.device("meta")
    assert decoder is not None
    model.to(away)
    for owner in (decoder, decoder.view, *decoder._layers()):
        for name, value in list(vars(owner).items()):
            if isinstance(value, torch.Tensor):
                setattr(owner, name, value.to(away))
    decoder.device = away
    with torch.no_grad():
        decoder._forward_and_draw(24, fixed.COLUMNS, sampling, True)
        decoder.tokens = decoder.tokens.new_zeros(decoder.tokens.shape, device="cpu")
        with pytest.raises((RuntimeError, NotImplementedError)):
            decoder._forward_and_draw(24, fixed.COLUMNS, sampling, True)
