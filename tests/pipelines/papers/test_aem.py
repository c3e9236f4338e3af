"""AEM: the mean factor of a group's turns is 1, and hesitation is damped."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method
from toys import rough

from pipelines.papers.aem import aem


def factors(entropies, strength=1.0):
    """Factors of one-token turns, a row each with two turns."""
    H = torch.tensor(entropies).view(-1, 2)
    turn = torch.tensor([[0, 1]] * len(H))
    return aem(torch.ones_like(H), H, turn, torch.zeros(len(H)).long(), turn >= 0, strength=strength).flatten()


def test_the_sheet_s_factors():
    expected = torch.tensor([1.262011, 1.068270, 0.904271, 0.765449])
    torch.testing.assert_close(factors([0.2, 0.5, 0.8, 1.1], 0.5), expected, atol=1e-5, rtol=0)


@given(st.lists(st.floats(0, 4), min_size=2, max_size=5), st.floats(0, 3))
def test_the_factors_of_a_group_have_mean_one_and_fall_with_entropy(half, strength):
    entropies = [*half, *reversed([h + 0.5 for h in half])]
    made = factors(entropies, strength)
    assert made.mean().item() == pytest.approx(1.0, abs=1e-5) and (made > 0).all()
    order = torch.tensor(entropies).argsort()
    assert (made[order].diff() <= 1e-6).all()


def test_equal_entropies_and_no_strength_change_nothing():
    assert torch.equal(factors([0.7] * 4), torch.ones(4))
    assert torch.equal(factors([0.2, 0.5, 0.8, 1.1], 0.0), torch.ones(4))


def test_a_turn_counts_once_whatever_its_length_and_groups_apart():
    turn = torch.tensor([[0, 0, 0, 1], [0, 1, 1, -1]])
    H = torch.tensor([[0.0, 3.0, 0.0, 3.0], [2.0, 0.0, 4.0, 9.0]])
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0]]).bool()
    made = aem(torch.ones(2, 4), H, turn, torch.zeros(2).long(), mask)
    means, weights = torch.tensor([1.5, 3.0, 2.0, 2.0]), None
    weights = (-(means - 1.5) / 1.5).exp()
    expected = weights / weights.mean()
    torch.testing.assert_close(made[0, :2], expected[0].expand(2))
    torch.testing.assert_close(made[0, 3], expected[1])
    torch.testing.assert_close(made[1, :3], expected[2].expand(3))
    apart = aem(torch.ones(2, 4), H, turn, torch.arange(2), mask)
    torch.testing.assert_close(apart[1, :3], torch.ones(3))


def test_signs_stay_and_what_is_no_turn_is_left_alone():
    batch = rough(2)
    batch.advantage = torch.randn(batch.mask.shape) * batch.mask
    made = run_method("credit", "aem", batch, advantage=batch.advantage)
    assert torch.equal(made.sign(), batch.advantage.sign())


@pytest.mark.parametrize("seed", range(4))
def test_against_a_loop(seed):
    """Holes between a turn's tokens, unscored rows, rows with fewer turns than others, a trained token outside turns."""
    batch = rough(seed)
    batch.turn = batch.turn.clone()
    lost = batch.mask & (batch.mask.cumsum(1) == 2)
    batch.turn[lost] = -1
    made = run_method("credit", {"kind": "aem", "strength": 0.8}, batch, advantage=batch.mask.float())
    means: dict[int, dict[tuple[int, int], float]] = {}
    for row, group in enumerate(batch.group.tolist()):
        for turn in range(3):
            inside = batch.mask[row] & (batch.turn[row] == turn)
            if inside.any():
                means.setdefault(group, {})[row, turn] = float(batch.entropy_old[row][inside].double().mean())
    for own in means.values():
        low, high = min(own.values()), max(own.values())
        raw = {
            key: math.exp(-0.8 * ((value - low) / (high - low) if high > low else 0.0)) for key, value in own.items()
        }
        mean = sum(raw.values()) / len(raw)
        for (row, turn), value in raw.items():
            inside = batch.mask[row] & (batch.turn[row] == turn)
            torch.testing.assert_close(
                made[row][inside], torch.full_like(made[row][inside], value / mean), atol=1e-5, rtol=0
            )
    assert (made[lost] == 1).all() and (made[~batch.mask] == 0).all()


def test_rows_without_turns_are_left_alone():
    none = torch.full((2, 3), -1)
    assert torch.equal(aem(torch.ones(2, 3), torch.ones(2, 3), none, torch.zeros(2).long(), none < 0), torch.ones(2, 3))
