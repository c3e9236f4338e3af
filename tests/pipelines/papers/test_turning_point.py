"""TurningPoint: where the trend turns, the segment is paid all that is to come."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method
from toys import rough

from pipelines.papers.turning_point import gains, turning_point


def paid(values, reward, **settings):
    v = torch.tensor([values], dtype=torch.float64)
    return gains(v, torch.tensor([reward], dtype=torch.float64), torch.ones_like(v).bool(), **settings)[0].tolist()


@pytest.mark.parametrize(
    ("values", "reward", "settings", "expected"),
    [
        ([0.2, 0.1, 0.4, 0.5], 0.9, {}, [-0.1, 0.8, 0.1, 0.4]),
        ([0.5, 0.4, 0.9, 0.6], 0.7, {}, [-0.1, 0.5, -0.3, 0.1]),
        ([0.5, 0.4, 0.9, 0.6], 0.7, {"consistent": False}, [-0.1, 0.3, -0.3, 0.1]),
        ([0.2, 0.1, 0.4, 0.5], 0.9, {"eta": 0.5}, [-0.1, 0.4, 0.1, 0.4]),
        ([0.2, 0.4, 0.5], 0.9, {}, [0.7, 0.1, 0.4]),
        ([0.5, 0.4], 0.9, {"eta": 0.5}, [-0.1, 0.5]),
        ([0.5, 0.9, 0.8, 0.7], 0.6, {"eta": 0.5, "first": False}, [0.4, -0.1, -0.1, -0.1]),
        ([0.5, 0.4, 0.4], 0.9, {"consistent": False, "first": False}, [-0.1, 0.0, 0.5]),
        ([0.2, 0.4, 0.5], 0.9, {"first": False}, [0.2, 0.1, 0.4]),
    ],
)
def test_the_sheet_s_rewards(values, reward, settings, expected):
    assert paid(values, reward, **settings) == pytest.approx(expected)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=7), st.integers(0, 8))
def test_without_turning_points_they_telescope_and_mirrored_values_mirror_them(values, reward):
    v, r = [x / 8 for x in values], reward / 8
    plain = [b - a for a, b in zip(v, [*v[1:], r], strict=True)]
    assert sum(plain) == pytest.approx(r - v[0])
    made = paid(v, r)
    for at, (value, rise) in enumerate(zip(made, plain, strict=True)):
        assert value == pytest.approx(rise) or value == pytest.approx(r - v[at])
    mirrored = paid([2 * v[0] - x for x in v], 2 * v[0] - r)
    assert mirrored == pytest.approx([-x for x in made])


def test_segments_are_compared_by_their_number():
    nan = torch.nan
    V = torch.tensor([[nan, 0.5, nan, 0.75, nan], [nan, 0.5, 0.25, nan, nan], [nan, nan, nan, nan, nan]])
    mask = torch.tensor([[0, 1, 1, 1, 1], [0, 1, 1, 1, 0], [0, 1, 1, 0, 0]]).bool()
    made = turning_point(
        torch.tensor([1.0, 0.0, 1.0]), V, torch.zeros(3).long(), torch.ones(3).bool(), mask, 0.0 * mask
    )
    half = 0.5**0.5
    torch.testing.assert_close(
        made,
        torch.tensor([[0, half, half, half, half], [0, -half, -half, -half, 0], [0, 0, 0, 0, 0]]),
        atol=1e-4,
        rtol=0,
    )


@pytest.mark.parametrize("seed", range(4))
def test_against_a_loop(seed):
    batch = rough(seed)
    made = run_method("advantage", "turning_point", batch)
    valued = batch.mask & ~batch.mc_value.isnan()
    rows: list[list[float]] = []
    for row in range(len(made)):
        values = batch.mc_value[row][valued[row]].tolist()
        rows.append(paid(values, float(batch.reward[row])) if values else [])
    for row in range(len(made)):
        number = -1
        for at in range(made.shape[1]):
            number += bool(valued[row, at])
            same = [
                r
                for r in range(len(made))
                if batch.group[r] == batch.group[row] and batch.scored[r] and len(rows[r]) > number >= 0
            ]
            expected = 0.0
            if batch.mask[row, at] and number >= 0 and len(same) > 1:
                others = torch.tensor([rows[r][number] for r in same]).double()
                expected = float((rows[row][number] - others.mean()) / (others.std() + 1e-6))
            assert made[row, at].item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("values", [[torch.nan] * 4, [0.1, 0.2, 0.3, 0.4]])
def test_one_row_or_no_value_says_nothing(values):
    V, one = torch.tensor([values]), torch.ones(1)
    assert (turning_point(one, V, one.long(), one.bool(), torch.ones(1, 4).bool(), torch.zeros(1, 4)) == 0).all()
