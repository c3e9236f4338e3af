"""Rough times: their arithmetic, and the one step that was measured on a GPU."""

from __future__ import annotations

import pytest
import toys

from pipelines.recipe.read import read_recipe
from tasks.preflight import memory, step_time

SHAPE = memory.Shape(
    387 * 10**6, layers=24, hidden=896, intermediate=4864, heads=14, key_heads=2, head_size=64, vocabulary=32_000
)
H100 = step_time.CARDS["H100"]
MEASURED = (
    "model.dtype=bfloat16", "rlvr.prompts=64", "rlvr.group_size=8", "rlvr.sampling.max_tokens=512", "rlvr.micro_batch_tokens=16384",
)  # fmt: skip


def time(tmp_path, stage, *overrides, prompt_tokens=256):
    node = read_recipe(toys.recipe(tmp_path), list(overrides)).node(stage)
    return step_time.of_stage(node, SHAPE, H100, prompt_tokens=prompt_tokens)


def test_beside_the_step_that_was_measured(tmp_path):
    """2.5 s of rollouts and 4.9 s of update, a part of which is no pass (docs/results.md, "On one H100")."""
    measured = time(tmp_path, "rlvr", *MEASURED)
    assert 1.2 < measured.decoding < 3.75 and 2.0 < measured.training < 5.0


def test_what_more_costs(tmp_path):
    base = time(tmp_path, "rlvr", *MEASURED)
    assert time(tmp_path, "rlvr", *MEASURED, "rlvr.epochs=2").training == pytest.approx(2 * base.training)
    assert time(tmp_path, "rlvr", *MEASURED, "rlvr.by_source={a: {group_size: 16}}").training == pytest.approx(
        2 * base.training
    )
    assert time(tmp_path, "rlvr", *MEASURED, "rlvr.lora=4").training < base.training
    assert time(tmp_path, "rlvr", *MEASURED, "rlvr.gradient_checkpointing=true").training > base.training
    assert time(tmp_path, "rlvr", *MEASURED, "rlvr.divergence={kind: k3, weight: 0.1}").training > base.training
    assert time(tmp_path, "rlvr", *MEASURED, "rlvr.processes=4").training == pytest.approx(base.training / 4)
    assert time(tmp_path, "rlvr", *MEASURED, "rlvr.decode_rows=256").decoding > base.decoding
    sft, twice = (time(tmp_path, "sft", f"sft.tokens_per_step={tokens}") for tokens in (4096, 8192))
    assert twice.training == pytest.approx(2 * sft.training) and sft.decoding == 0


@pytest.mark.parametrize(
    ("name", "known"),
    [("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA L40S", "L40S"), ("NVIDIA A10", "A10"), ("h200", "H200")],
)
def test_cards_by_the_driver_s_names(name, known):
    assert step_time.named(name)[0] == known and step_time.named("GeForce") is None
