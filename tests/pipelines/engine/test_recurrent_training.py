"""Families that keep a recurrent state through every stage: SFT, RLVR, evaluation, adapters, a kill, recomputed blocks."""

from __future__ import annotations

import hybrid_toys
import pytest
import torch
import toys

from benchmarks import families
from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.engine import adapters, models, quantization
from pipelines.recipe.read import read_recipe
from pipelines.recipe.training import Lora
from pipelines.sft.run import Trainer
from pipelines.stage.report import Report

CHAINS = ("qwen3_next", "nemotron_h", "falcon_h1", "granitemoehybrid", "lfm2", "kimi_linear", "mamba2")
IN_CI = (("qwen3_next", False), ("nemotron_h", True), ("mamba2", False))
NATS = 3e-4
"""The delta rule adds up a chunk of tokens in another order than single ones: 9e-5 was seen."""


def family(name: str) -> families.Family:
    config = hybrid_toys.FAMILIES[name] | {"max_position_embeddings": 1024, "intermediate_size": 48}
    return families.Family(name, "chatml", **families.QWEN, config=config)


def fresh(name: str) -> dict:
    return {
        "fresh": {
            "architecture": name,
            "config": {"hidden_size": 32, "intermediate_size": 48} | hybrid_toys.FAMILIES[name],
        }
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lora"),
    [
        pytest.param(name, lora, marks=() if (name, lora) in IN_CI else pytest.mark.long)
        for name in CHAINS
        for lora in (False, True)
    ],
)
def test_a_family_through_every_stage(tmp_path, name, lora):
    base = families.checkpoint(family(name), tmp_path / "base")
    done = families.run(family(name), base, tmp_path, lora)
    assert done["trained"] > 0 and done["mismatch"] < NATS
    assert done["differences"].keys() == {"sampler", "rows"}
    assert max(done["differences"].values()) < NATS
    assert not done["packed"] and not done["shared_prompts"] and done["evaluation_reads"]


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes(tmp_path):
    reward = ("rlvr.reward_functions=[benchmarks.families:varied_reward]",)
    toys.recipe(tmp_path, model=fresh("qwen3_next") | {"tokenizer": {"kind": "char", "vocab_size": 128}})
    begun = toys.start(tmp_path, tmp_path / "toy.yaml", ["sft.steps=4", "sft.commit={every: 1}"])

    def rlvr(name: str):
        (tmp_path / name).mkdir(exist_ok=True)
        return toys.trainer(tmp_path / name, begun, tmp_path / "toy.yaml", *reward)

    whole = rlvr("whole")
    whole.run()
    toys.run_stopped(lambda: rlvr("killed"))
    assert toys.result(tmp_path / "whole/work") == toys.result(tmp_path / "killed/work")

    def sft(name: str):
        read = read_recipe(tmp_path / "toy.yaml", ["sft.steps=4", "sft.commit={every: 1}"])
        work = tmp_path / name
        (work / "out").mkdir(parents=True, exist_ok=True)
        report = Report(work, committed=True)
        return Trainer(read.sft, read.model, data=begun / "data", out=work / "out", work=work, report=report, seed=0)

    toys.run_stopped(lambda: sft("sft-killed"), 2, None)
    weights = [
        (folder / "out/model/model.safetensors").read_bytes() for folder in (begun / "sft", tmp_path / "sft-killed")
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("name", ["qwen3_next", "nemotron_h", "falcon_h1", "granitemoehybrid", "lfm2"])
def test_blocks_that_are_recomputed_have_the_same_gradients(name):
    network = hybrid_toys.model(name).train()
    ids = torch.arange(3, 33).view(2, 15)

    def gradients() -> dict[str, torch.Tensor]:
        network.zero_grad()
        network(input_ids=ids, use_cache=False).logits.log_softmax(-1)[..., 5].sum().backward()
        return {key: weight.grad.clone() for key, weight in network.named_parameters() if weight.grad is not None}

    plain = gradients()
    network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    calls = []
    network.get_decoder().layers[0].register_forward_hook(lambda *_: calls.append(1))
    recomputed = gradients()
    assert len(calls) >= 1 and plain.keys() == recomputed.keys()
    for key, gradient in plain.items():
        torch.testing.assert_close(recomputed[key], gradient, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["nemotron_h", "falcon_h1", "granitemoehybrid", "jamba", "mamba2"])
def test_adapters_leave_out_what_mambas_kernels_read_themselves(name):
    wrapped = adapters.with_lora(hybrid_toys.model(name), Lora(rank=2))
    adapted = {
        key.rsplit(".lora_A", 1)[0].rsplit(".", 1)[1] for key, _ in wrapped.named_parameters() if "lora_A" in key
    }
    assert "in_proj" in adapted and not adapted & {"out_proj", "x_proj", "dt_proj", "conv1d"}


def adapted(name: str, **fields):
    """A model with adapters that all change something."""
    wrapped = adapters.with_lora(hybrid_toys.model(name), Lora(rank=2, **fields)).eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in wrapped.parameters():
            if weight.requires_grad:
                weight.copy_(0.2 * torch.randn(weight.shape, generator=draw))
    return wrapped


@pytest.mark.parametrize("name", ["qwen3_next", "nemotron_h", "falcon_h1", "jamba", "lfm2", "mamba2"])
def test_merged_adapters_compute_what_was_trained(name):
    wrapped, ids = adapted(name), torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        plain = hybrid_toys.model(name)(input_ids=ids, use_cache=False).logits
        trained = wrapped(input_ids=ids, use_cache=False).logits
        merged = quantization.merged(wrapped)(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(merged, trained, atol=3e-4, rtol=0)
    assert (trained - plain).abs().max() > 0.1


@pytest.mark.parametrize("name", ["zamba", "zamba2"])
def test_matrices_that_layers_share_take_no_adapters(name):
    with pytest.raises(ModelError, match=r"layers of Zamba\w+ share one matrix"):
        adapters.with_lora(hybrid_toys.model(name), Lora(rank=2))


def test_a_matrix_that_a_mamba_layer_reads_itself_takes_no_adapter():
    with pytest.raises(ModelError, match="reads the matrix dt_proj of its Mamba layers itself"):
        adapters.with_lora(hybrid_toys.model("jamba"), Lora(rank=2, target_modules=["dt_proj", "q_proj"]))


def test_a_fresh_model_reads_with_the_time_steps_it_decodes_with():
    """Nemotron-H's lower bound is lifted where models are made; Falcon-H1 has none."""
    settings = {"tokenizer": {"kind": "char", "vocab_size": 128}}
    for name in ("nemotron_h", "falcon_h1"):
        model = Model.model_validate(fresh(name) | settings)
        network = models.fresh_model(model, models.train_tokenizer("char", 128, ["ab"]), 0)
        limits = {module.time_step_limit[0] for module in network.modules() if hasattr(module, "time_step_limit")}
        assert limits == {0.0}
