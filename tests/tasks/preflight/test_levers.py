"""Settings that together are enough for a limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.recipe.read import read_recipe
from tasks.preflight import levers, memory

SHAPE = memory.Shape(
    10**8, layers=8, hidden=512, intermediate=2048, heads=8, key_heads=4, head_size=64, vocabulary=32_000
)
GPU = memory.Device(gpu=True, cards=4)
RLVR = ("rlvr.prompts=64", "rlvr.group_size=8", "rlvr.sampling.max_tokens=512")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return toys.recipe(tmp_path_factory.mktemp("levers"))


@pytest.mark.parametrize("stage", ["sft", "rlvr"])
@given(share=st.floats(0.05, 1.2))
@settings(deadline=None, max_examples=15)
def test_what_is_proposed_is_enough_when_it_is_set(stage, share, recipe):
    node = read_recipe(recipe, list(RLVR)).node(stage)
    before = memory.of_stage(node, SHAPE, device=GPU).peak
    limit = int(before * share)
    fits = levers.fitting(node, SHAPE, limit, device=GPU)
    if share >= 1:
        assert fits == ([], before)
    if fits is not None:
        changed = read_recipe(recipe, [*RLVR, *fits[0]]).node(stage)
        assert memory.of_stage(changed, SHAPE, device=GPU).peak == fits[1] <= limit
    else:
        assert all(peak > limit for _, peak in levers.levers(node, SHAPE, device=GPU))


def test_what_trains_something_else_comes_last(recipe):
    node = read_recipe(recipe, list(RLVR)).node("rlvr")
    before = memory.of_stage(node, SHAPE, device=GPU).peak
    chosen, _ = levers.fitting(node, SHAPE, before - 1, device=GPU)
    assert len(chosen) == 1 and not chosen[0].startswith(("rlvr.lora", "model."))
    chosen, _ = levers.fitting(node, SHAPE, memory.PROCESS + 9 * 10**8, device=GPU)
    fields = [name.partition("=")[0] for name in chosen]
    assert fields.index("rlvr.processes") < fields.index("rlvr.lora")


def test_gpus_of_servers_and_refused_settings_are_left_out(recipe):
    def offered(*overrides):
        node = read_recipe(recipe, [*RLVR, *overrides]).node("rlvr")
        large = replace(SHAPE, parameters=10**10)
        return {name.partition("=")[0]: name for name, _ in levers.levers(node, large, device=GPU)}

    assert offered()["rlvr.processes"] == "rlvr.processes=4"
    served = "rlvr.sampler={serve: {count: 1}}"
    assert offered(served, "rlvr.mismatch.on_breach=warn")["rlvr.processes"] == "rlvr.processes=3"
    several = offered(served, "rlvr.mismatch.on_breach=warn", "rlvr.processes=2")
    assert several["rlvr.full_copy"] == "rlvr.full_copy=false" and "rlvr.full_copy" not in offered("rlvr.processes=2")
    assert "rlvr.decode_rows" not in offered(served, "rlvr.mismatch.on_breach=warn"), "servers decode"
    assert "rlvr.processes" not in offered("rlvr.window=0.5"), "rows that go on are kept by one process"
    assert "rlvr.processes" not in offered("rlvr.lora={rank: 4, load_in_4bit: true}")


QWEN = {
    1.5: memory.Shape(1_543_714_304, 28, 1536, 8960, 12, 2, 128, 151_936),
    7: memory.Shape(7_615_616_512, 28, 3584, 18_944, 28, 4, 128, 152_064),
    14: memory.Shape(14_770_033_664, 48, 5120, 13_824, 40, 8, 128, 152_064),
    32: memory.Shape(32_763_876_352, 64, 5120, 27_648, 40, 8, 128, 152_064),
}
"""Billions of parameters → sizes of Qwen2.5."""
NODE = ("model.dtype=bfloat16", "model.weights_dtype=bfloat16")


def sft_on(recipe, cards, billions, tokens, *more):
    sets = [f"sft.processes={cards}", f"sft.max_length={tokens}", f"sft.micro_batch_tokens={tokens}", *more]
    node = read_recipe(recipe, [*NODE, *sets]).node("sft")
    device = memory.Device(gpu=True, cards=cards)
    return memory.of_stage(node, QWEN[billions], device=device), levers.fitting(
        node, QWEN[billions], 80 * 10**9, device=device
    )


@pytest.mark.parametrize("tokens", [2048, 16_384])
@pytest.mark.parametrize("billions", QWEN)
def test_models_of_known_sizes_on_eight_gpus(recipe, billions, tokens):
    """Full: 2 bytes of weights, 2 of gradients and 8 of moments a parameter, an eighth a GPU; adapters: next to none of the last two."""
    full, fits = sft_on(recipe, 8, billions, tokens, "sft.gradient_checkpointing=true")
    share = QWEN[billions].parameters / 8
    assert full.gradients == pytest.approx(2 * share, rel=0.02) and full.optimizer == pytest.approx(8 * share, rel=0.02)
    gathered = full.weights - 2 * share
    assert 0 < gathered < 2 * QWEN[billions].parameters / 2, "a few layers at a time, never the model"
    assert fits == ([], full.peak), "full fine-tuning up to 32 billion parameters fits eight GPUs of 80 GB"
    lora, fits = sft_on(recipe, 8, billions, tokens, "sft.gradient_checkpointing=true", "sft.lora=16")
    assert fits is not None and lora.gradients + lora.optimizer < 0.02 * (full.gradients + full.optimizer)
    shorter, _ = sft_on(recipe, 8, billions, tokens // 2, "sft.gradient_checkpointing=true")
    assert shorter.activations < full.activations < 2.2 * shorter.activations


def test_a_model_too_large_for_one_gpu_is_told_what_is_enough(recipe):
    needs, fits = sft_on(recipe, 1, 7, 2048)
    assert needs.peak > 12 * QWEN[7].parameters > 80 * 10**9
    assert fits is not None and any(each.startswith("sft.lora") for each in fits[0])
    _, fits = sft_on(recipe, 1, 32, 16_384)
    assert fits is not None and "sft.activation_offload=true" in fits[0], (
        "65 GB of weights leave no room for rows of 16 k"
    )
    assert sft_on(recipe, 1, 32, 65_536)[1] is None, "nor for two blocks of 64 k"
