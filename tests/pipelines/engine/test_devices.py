"""Nothing mixes devices: the engine and the stages with tensors that stand in for a GPU's."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import toys
from gpu_stand_in import GPU, as_gpu, captured
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from pipelines.contract.sampling import Sampling
from pipelines.engine import fixed, models
from pipelines.engine.distribution import generator
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler

CPU = torch.device("cpu")
PREFIXES = [p for p in ([5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [15, 16, 17, 18]) for _ in range(4)]


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that everything computes on."""
    monkeypatch.setattr(models, "device", lambda: GPU)
    with as_gpu(monkeypatch):
        yield


def test_the_stand_in_refuses_what_a_gpu_would(gpu):
    there, here = torch.arange(3, device=GPU), torch.arange(3)
    with pytest.raises(RuntimeError, match="of the CPU and of the GPU"):
        there + here
    with pytest.raises(RuntimeError, match="generator of another device"):
        torch.rand(3, device=GPU, generator=torch.Generator())
    with pytest.raises(TypeError, match="as an array"):
        there.numpy()
    with captured(), pytest.raises(RuntimeError, match="waits for the host"):
        bool(there[0] > 1)
    with captured(), pytest.raises(RuntimeError, match="waits for the host"):
        there[there > 1]
    assert (there.to("cpu") + here).tolist() == [0, 2, 4] and (there * 2).device == GPU


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"top_p": 0.9, "top_k": 40, "min_p": 0.01}], ids=["greedy", "cut"]
)
@pytest.mark.parametrize("loop", ["graphs", "one_by_one"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.few(3)
def test_sampling(family, loop, sampling, gpu, monkeypatch):
    settings = Sampling(max_tokens=20, **sampling)
    plain = TorchSampler(toys.model(family), stop=[2], pad=0, fixed=loop == "graphs")
    wanted = plain.extend(PREFIXES, settings, generator(CPU, 1), entropy=True)
    step = fixed.FixedDecoder._forward_and_draw

    def held(*args):
        with captured():
            step(*args)

    monkeypatch.setattr(fixed.FixedDecoder, "_forward_and_draw", held)
    monkeypatch.setattr(fixed, "warm_up", lambda run: run())
    monkeypatch.setattr(fixed, "record", lambda run, other: SimpleNamespace(replay=run))
    sampler = TorchSampler(toys.model(family).to(GPU), stop=[2], pad=0, fixed=None if loop == "graphs" else False)
    drawn = sampler.extend(PREFIXES, settings, generator(sampler.device, 1), entropy=True)
    assert [one.tokens for one in drawn] == [one.tokens for one in wanted]
    assert loop == "one_by_one" or len(sampler.fixed.graphs) > 0
    streams = [(2**62 + i, i) for i in range(len(PREFIXES))]
    there, here = (each.extend(PREFIXES, settings, None, streams=streams) for each in (sampler, plain))
    assert [one.tokens for one in there] == [one.tokens for one in here]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["rlvr.lora.rank=4"], ["presets=[ppo]"]], ids=["full", "lora", "ppo"])
def test_a_step_of_rlvr(tmp_path, start, more, gpu):
    trainer = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "rlvr.steps=2", "rlvr.cuda_graphs=false", *more)
    metrics = trainer.step(0)
    assert all(weight.device == GPU for weight in trainer.learner.model.parameters())
    assert math.isfinite(metrics["loss/policy"]) and metrics["optimizer/grad_norm"] >= 0


@pytest.mark.slow
def test_a_step_of_sft(tmp_path, start, gpu):
    trainer = toys.sft_trainer(tmp_path, start / "data", "sft.steps=2")
    trainer.make_step(0)
    assert trainer.heldout_loss() > 0


def test_flash_attention_is_not_asked_for_float32():
    def flash(module, query, *args, **kwargs):
        assert torch.is_autocast_enabled("cpu"), (
            "transformers would leave the queries in float32, which flash attention refuses"
        )
        return sdpa_attention_forward(module, query, *args, **kwargs)

    AttentionInterface.register("toy_flash", flash)
    model = toys.model()
    model.config._attn_implementation = "toy_flash"
    assert not Policy(model, Sampling(), dtype="bfloat16").takes_masks
