"""The check of a server's weights, on made-up log-probabilities: what is a fault and what is rounding."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.base.errors import StaleWeights
from pipelines.engine.server_probe import BOUNDS, FROZEN, Probe, rounding_of, sequences, trainer_logps

TOKENS = 124
ROUNDING = {"float32": 5e-7, "bfloat16": 0.015}


def rounded(values, dtype, seed):
    noise = torch.randn(TOKENS, generator=torch.Generator().manual_seed(seed))
    return values + ROUNDING[dtype] * noise


def drift(pushes, step, seed=0):
    """Log-probabilities of the trainer at each push; each update moves them by `step` nats."""
    generator = torch.Generator().manual_seed(seed)
    moves = torch.randn(pushes, TOKENS, generator=generator) * step
    return -3 + moves.cumsum(0)


@given(
    dtype=st.sampled_from(["float32", "bfloat16"]),
    step=st.floats(1e-9, 0.5),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=60, deadline=None)
def test_a_server_that_follows_is_never_accused(dtype, step, seed):
    probe = Probe("server", dtype)
    for push, trainer in enumerate(drift(30, step, seed)):
        assert probe.judge(trainer, rounded(trainer, dtype, seed + push)) < BOUNDS[dtype]


@pytest.mark.parametrize("step", [1e-5, 1e-3, 0.3])
def test_old_weights_are_named_at_the_first_push_that_changes_anything(step):
    probe, trainer = Probe("server", "float32"), drift(2, step)
    answer = rounded(trainer[0], "float32", 1)
    probe.judge(trainer[0], answer)
    with pytest.raises(StaleWeights, match="still holds the weights of an earlier push"):
        probe.judge(trainer[1], answer)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_mixture_is_named(share):
    probe, trainer = Probe("server", "float32"), drift(2, 1e-4)
    probe.judge(trainer[0], rounded(trainer[0], "float32", 1))
    mixed = trainer[1] + share * drift(1, 3e-4, seed=5)[0] + share * 3
    with pytest.raises(StaleWeights, match="neither the new ones nor the old ones"):
        probe.judge(trainer[1], mixed)


def test_coarse_weights_may_swallow_an_update_but_not_several():
    probe, trainer = Probe("server", "bfloat16"), drift(9, 1e-5)
    answer = rounded(trainer[0], "bfloat16", 1)
    for push in range(FROZEN["bfloat16"]):
        probe.judge(trainer[push], answer)
    with pytest.raises(StaleWeights, match="earlier push"):
        probe.judge(trainer[FROZEN["bfloat16"]], answer)


def test_a_model_that_amplifies_rounding_is_judged_by_its_own():
    """SmolLM2-135M: 0.064 nats in the trainer's bfloat16, 0.079 on a vLLM server in bfloat16, 0.56 from the model before its SFT."""
    trainer = drift(1, 1e-3)[0]
    healthy, other = trainer + 0.08, trainer + 0.55
    assert Probe("server", "bfloat16", rounding=0.064).judge(trainer, healthy) == pytest.approx(0.08, abs=1e-3)
    with pytest.raises(StaleWeights, match="not hold the weights that were written"):
        Probe("server", "bfloat16", rounding=0.064).judge(trainer, other)
    with pytest.raises(StaleWeights):
        Probe("server", "bfloat16").judge(trainer, healthy)


def test_the_rounding_is_that_of_the_model():
    model = toys.model("llama")
    tokens = sequences(100, 64)
    low = rounding_of(partial(trainer_logps, model), tokens)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(8)
    assert 0 < low < rounding_of(partial(trainer_logps, model), tokens)


def test_a_step_without_an_update_is_no_fault():
    probe, trainer = Probe("server", "float32"), drift(1, 1e-3)[0]
    for _ in range(5):
        assert probe.judge(trainer, trainer.clone()) == 0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -9.0])
def test_a_server_on_another_folder_is_named_at_once(wrong):
    trainer = drift(1, 1e-3)[0]
    with pytest.raises(StaleWeights, match="not hold the weights that were written"):
        Probe("server", "float32").judge(trainer, torch.full_like(trainer, wrong))


def test_the_sequences_are_always_the_same_and_fit():
    assert sequences(34, 64) == sequences(34, 64) and len(sequences(34, 64)[0]) == 32
    assert all(len(ids) == 7 and max(ids) < 34 for ids in sequences(34, 8))


def test_rounding_of_weights_stored_in_bfloat16_is_against_float32_arithmetic():
    """Compared with itself such a model would show no rounding at all, and a server's would be a fault."""
    model, tokens = toys.model().to(torch.bfloat16), sequences(100, 30)
    stored = rounding_of(partial(trainer_logps, model), tokens)
    assert stored > 1e-4
    assert stored == pytest.approx(rounding_of(partial(trainer_logps, model.float()), tokens), rel=1.0)
