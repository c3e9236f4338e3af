"""The engine and the stages on a GPU (`make test-gpu`): captured graphs, gradients, precision, resume, memory.

`WHETSTONE_TEST_DEVICE=cpu` runs what has a meaning there on the CPU, which tests the tests.
"""

from __future__ import annotations

import copy
import os

import pytest
import torch
import toys

from pipelines.contract.sampling import Sampling
from pipelines.engine import models
from pipelines.engine.compiled import compile_blocks
from pipelines.engine.distribution import generator
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler

DEVICE = torch.device(os.environ.get("WHETSTONE_TEST_DEVICE", "cuda"))
ON_GPU = DEVICE.type == "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="there is no GPU"),
]
PLAIN = ("llama", "qwen2", "qwen3", "gemma", "gpt2")
"""Families whose layers keep every key, and which are therefore decoded in replayed graphs."""
PREFIXES = [p for p in ([5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [15, 16, 17, 18]) for _ in range(6)]
BOUNDS = {"float32": 1e-4, "bfloat16": 0.3}
"""Largest difference of a token's log-probability between sampler and trainer, in nats, of a model with large weights."""


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch):
    """float32 means float32: no TF32, whatever the environment asks for."""
    if ON_GPU:
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def on_device(family: str = "llama", compiled: bool = False):
    model = toys.model(family).to(DEVICE)
    if compiled:
        compile_blocks(model)
    return model


@pytest.mark.parametrize("compiled", [False, True], ids=["as_it_is", "compiled"])
@pytest.mark.parametrize("family", PLAIN)
def test_greedy_tokens_of_the_cpu(family, compiled):
    """Replayed steps on the device and the plain loop on the CPU choose the same tokens."""
    sampling = Sampling(temperature=0, max_tokens=40)
    here = TorchSampler(on_device(family, compiled), stop=[2], pad=0, fixed=True)
    made = here.extend(PREFIXES, sampling, generator(DEVICE, 1))
    wanted = TorchSampler(toys.model(family), stop=[2], pad=0).extend(
        PREFIXES, sampling, generator(torch.device("cpu"), 1)
    )
    assert [one.tokens for one in made] == [one.tokens for one in wanted]
    assert here.fixed is not None and bool(here.fixed.graphs) == ON_GPU


@pytest.mark.parametrize("fixed", [True, False], ids=["replayed", "one_by_one"])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("compiled", [False, True], ids=["as_it_is", "compiled"])
@pytest.mark.parametrize("family", ("llama", "qwen3", "gemma3_text"))
def test_the_policy_reads_what_the_sampler_drew(family, compiled, dtype, fixed):
    """The trainer's log-probabilities are the sampler's, before and after the weights have changed in place."""
    model, sampling = on_device(family, compiled), Sampling(temperature=1.1, top_p=0.95, max_tokens=40)
    sampler = TorchSampler(model, stop=[2], pad=0, dtype=dtype, fixed=fixed)
    policy = Policy(model, sampling, dtype=dtype)
    for seed in range(2):
        made = sampler.extend(PREFIXES, sampling, generator(DEVICE, seed))
        assert len({tuple(one.tokens) for one in made}) > 10, "the same answer over and over shows little"
        for prefix, one in zip(PREFIXES, made, strict=True):
            tokens = torch.tensor([prefix + one.tokens], device=DEVICE)
            mask = torch.zeros_like(tokens, dtype=torch.bool)
            mask[0, len(prefix) :] = True
            scored = policy.logp(tokens, mask).logp[mask].detach().cpu()
            torch.testing.assert_close(scored, torch.tensor(one.logp), atol=BOUNDS[dtype], rtol=0)
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.flip(0))


def test_a_seed_draws_the_same_tokens_again():
    sampler = TorchSampler(on_device(), stop=[2], pad=0, fixed=True)
    one, two = (sampler.extend(PREFIXES, Sampling(max_tokens=30), generator(DEVICE, 7)) for _ in range(2))
    assert one == two


@pytest.mark.parametrize("compiled", [False, True], ids=["as_it_is", "compiled"])
@pytest.mark.parametrize("family", ("llama", "gemma3_text"))
def test_gradients_of_the_cpu(family, compiled):
    """Log-probabilities of a padded batch and the gradient of their sum, against float32 on the CPU."""
    there = toys.model(family)
    here = copy.deepcopy(there).to(DEVICE)
    if compiled:
        compile_blocks(here)
    tokens = torch.randint(3, 100, (6, 24), generator=generator(torch.device("cpu"), 3))
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for row in range(6):
        mask[row, 4 : 24 - 2 * row] = True
    found = {}
    for name, model in (("cpu", there), ("device", here)):
        where = next(model.parameters()).device
        logp = Policy(model, Sampling(), dtype="float32").logp(tokens.to(where), mask.to(where)).logp
        logp[mask.to(where)].sum().backward()
        gradient = torch.cat([weight.grad.flatten().cpu() for weight in model.parameters()])
        found[name] = logp.detach().cpu()[mask], gradient
    torch.testing.assert_close(found["device"][0], found["cpu"][0], atol=1e-4, rtol=0)
    distance = (found["device"][1] - found["cpu"][1]).norm() / found["cpu"][1].norm()
    assert distance < 1e-4, "a gradient is another one on this device"


@pytest.fixture
def stage(tmp_path, start, monkeypatch):
    """Builds RLVR trainers of the toy recipe on the device; they share a folder where they share a name."""
    monkeypatch.setattr(models, "device", lambda: DEVICE)

    def build(name: str, *overrides: str):
        recipe = tmp_path / "recipe"
        recipe.mkdir(exist_ok=True)
        return toys.trainer(tmp_path / name, start, toys.recipe(recipe), "rlvr.steps=4", *overrides)

    return build


@pytest.mark.parametrize("compiled", ["false", "true"], ids=["as_it_is", "compiled"])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_run_stopped_and_resumed_ends_in_the_same_bytes(stage, tmp_path, dtype, compiled, monkeypatch):
    """With algorithms that add up in one order; the fast backward passes of attention do not."""
    if ON_GPU:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    torch.use_deterministic_algorithms(ON_GPU, warn_only=True)
    choices = f"model.dtype={dtype}", f"model.compile={compiled}"
    stage("whole", *choices).run()
    toys.run_stopped(lambda: stage("stopped", *choices))
    torch.use_deterministic_algorithms(False)
    assert toys.result(tmp_path / "stopped/work") == toys.result(tmp_path / "whole/work")


@pytest.mark.parametrize("dtype", BOUNDS)
def test_the_mismatch_of_a_run_is_healthy(stage, tmp_path, dtype):
    """`rlvr.mismatch` stops a run that is not; in float32 the mean is rounding alone."""
    stage("run", f"model.dtype={dtype}", "rlvr.mismatch.on_breach=stop").run()
    means = [values["mismatch/mean"] for _, values in toys.history(tmp_path / "run/work") if "mismatch/mean" in values]
    assert len(means) == 4 and max(means) < (1e-4 if dtype == "float32" else 0.07)


def test_adapters_train(stage):
    trainer = stage("lora", "rlvr.lora.rank=4", "rlvr.optimizer.learning_rate=0.01")
    weights = {name: weight for name, weight in trainer.learner.model.named_parameters() if weight.requires_grad}
    before = {name: weight.detach().cpu().clone() for name, weight in weights.items()}
    trainer.run()
    assert weights and any(not torch.equal(weight.detach().cpu(), before[name]) for name, weight in weights.items())


def test_the_plan_is_within_a_fifth_of_the_measured_peak(tmp_path, start, monkeypatch):
    """Memory that PyTorch allocated on the device while SFT of a model of 27 M parameters took two steps."""
    from pipelines.recipe.read import read_recipe
    from tasks.preflight import memory

    monkeypatch.setattr(models, "device", lambda: DEVICE)
    wide = {
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    }
    changes = [f"model.fresh.config.{name}={value}" for name, value in wide.items()] + ["model.compile=true"]
    changes += [
        "sft.steps=2",
        "sft.tokens_per_step=4096",
        "sft.micro_batch_tokens=4096",
        "sft.commit.every=2",
        "sft.heldout=null",
    ]
    trainer = toys.sft_trainer(tmp_path, start / "data", *changes)
    shape = memory.Shape.of(trainer.model.config, sum(weight.numel() for weight in trainer.model.parameters()))
    node = read_recipe(tmp_path / "toy.yaml", changes).node("sft")
    planned = max(memory.of_stage(node, shape, device=memory.Device(gpu=ON_GPU)).phases.values())
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    trainer.run()
    if not ON_GPU:
        pytest.skip("there is nothing to compare with on the CPU, whose planner is tested by whole processes")
    peak = torch.cuda.max_memory_allocated()
    print(f"planned {planned / 1e9:.2f} GB, measured {peak / 1e9:.2f} GB")
    assert abs(planned - peak) < 0.2 * peak, f"planned {planned / 1e9:.2f} GB, measured {peak / 1e9:.2f} GB"
