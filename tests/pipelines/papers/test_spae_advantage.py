"""SPAE: rises of the potential, and outcomes damped after a solved step."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method
from toys import rough

from pipelines.papers.spae import shaped
from pipelines.papers.spae import spae_advantage as spae

ACC, CONF = torch.tensor([0.1, 0.5, 0.95, 0.97]), torch.tensor([0.3, 0.6, 0.98, 0.99])
PHI = (1.5 * ACC * CONF + 0.5 * ACC - CONF)[None]


def test_the_sheet_s_steps():
    torch.testing.assert_close(PHI[0], torch.tensor([-0.205, 0.1, 0.8915, 0.93545]))
    raw = shaped(PHI.double(), PHI < 2, torch.tensor([0.5]), saturated=0.85, damping=0.5, weight=0.5)[0]
    expected = torch.tensor([0.219312, 0.454373, 1.078453, 0.089831]).double()
    torch.testing.assert_close(raw, expected, atol=2e-6, rtol=0)
    standard = (raw - raw.mean()) / raw.std()
    torch.testing.assert_close(
        standard, torch.tensor([-0.549713, -0.013949, 1.408496, -0.844835]).double(), atol=1e-5, rtol=0
    )


@given(st.integers(0, 500))
def test_over_the_steps_of_a_batch_the_mean_is_zero_and_the_deviation_one(seed):
    batch = rough(seed)
    made = run_method("advantage", "spae", batch)
    steps = {
        (row, int(t)): float(made[row, at])
        for row in range(len(made))
        for at, t in enumerate(batch.turn[row])
        if batch.mask[row, at]
    }
    values = torch.tensor(list(steps.values()))
    assert values.mean().abs() < 1e-4 and values.std().item() == pytest.approx(1.0, abs=1e-3)


def steps(potential, centred, saturated=0.9, weight=0.5):
    values = torch.tensor([potential]).double()
    return shaped(
        values, torch.ones_like(values).bool(), torch.tensor([centred]), saturated=saturated, damping=0.5, weight=weight
    )[0]


def test_what_follows_a_solved_step_earns_less_of_the_outcome():
    expected = [1 - 0.5 * (1 - math.exp(-c)) for c in (0, 1, 2)]
    assert steps([0.95, 0.95, 0.95], 1.0).tolist() == pytest.approx(expected)
    assert steps([0.5, 0.5], 1.0, saturated=0.5, weight=0.0).tolist() == [1.0, 1.0], "a step at the bound is not solved"


def test_a_drop_earns_less_than_a_rise_and_steps_without_a_potential_do_not_move():
    potential = torch.tensor([[0.0, 0.4, 0.2, torch.nan]]).double()
    raw = shaped(potential, torch.ones(1, 4).bool(), torch.zeros(1), saturated=0.9, damping=0.5, weight=1.0)[0]
    assert raw[1] > raw[0] == raw[3] > raw[2] and raw.mean().abs() < 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_against_a_loop(seed):
    batch = rough(seed)
    batch.step_potential = batch.step_potential.clone()
    batch.step_potential[3::5, 1] = torch.nan
    made = run_method("advantage", {"kind": "spae", "saturated": 0.1, "damping": 0.4, "weight": 0.3, "eps": 0.5}, batch)
    raw, rises = {}, {}
    for row in range(len(made)):
        for step in range(3):
            if (batch.mask[row] & (batch.turn[row] == step)).any():
                rise = float(batch.step_potential[row, step] - batch.step_potential[row, step - 1]) if step else 0.0
                rises[row, step] = 0.0 if math.isnan(rise) else rise
    low, high = min(rises.values()), max(rises.values())
    gains = {key: math.exp((rise - low) / (high - low)) for key, rise in rises.items()}
    mean = sum(gains.values()) / len(gains)
    for row, step in rises:
        scores = batch.reward[(batch.group == batch.group[row]) & batch.scored]
        solved = sum(float(batch.step_potential[row, s]) > 0.1 for s in range(step) if (row, s) in rises)
        factor = 1 - 0.4 * (1 - math.exp(-solved))
        raw[row, step] = float(batch.reward[row] - scores.mean()) * factor + 0.3 * (gains[row, step] - mean)
    values = torch.tensor(list(raw.values())).double()
    for (row, step), value in raw.items():
        inside = batch.mask[row] & (batch.turn[row] == step)
        expected = torch.full_like(made[row][inside], float((value - values.mean()) / (values.std() + 0.5)))
        torch.testing.assert_close(made[row][inside], expected, atol=1e-5, rtol=0)
    assert (made[~batch.mask] == 0).all()


def test_two_steps_are_compared_and_one_says_nothing():
    turn = torch.tensor([[0, 1]])
    made = spae(torch.ones(1), torch.tensor([[0.5, 0.7]]), turn, torch.zeros(1).long(), torch.ones(1).bool(), turn >= 0)
    assert made[0].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-4)
    turn = torch.tensor([[0, 0]])
    made = spae(torch.ones(1), torch.tensor([[0.5]]), turn, torch.zeros(1).long(), torch.ones(1).bool(), turn >= 0)
    assert made.tolist() == [[0.0, 0.0]]
