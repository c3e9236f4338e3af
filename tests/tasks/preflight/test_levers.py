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
