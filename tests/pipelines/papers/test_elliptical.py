"""The elliptical bonus: the sheet's numbers, the released code's rank-one updates, and a run."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind

SEEDS = st.integers(0, 5_000)


def paid(features, group=None, correct=None, scored=None, **settings):
    n = len(features)
    ones = torch.ones(n)
    columns = {
        "reward": torch.zeros(n),
        "hidden_stats": torch.as_tensor(features),
        "group": torch.zeros(n, dtype=torch.int64) if group is None else group,
        "scored": ones > 0 if scored is None else scored,
        "correct": ones if correct is None else correct,
    }
    return bind("rlvr.shaping", {"kind": "elliptical", "weight": 1.0, **settings})(columns)


def test_the_sheets_values():
    """Of (1, 0), (1, 0), (0, 1) in turn: 10, 0.909091 and 10; each against all others has no first."""
    assert paid([[1.0, 0.0]]).tolist() == pytest.approx([10])
    assert paid([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).tolist() == pytest.approx([0.909091, 0.909091, 10])


@given(SEEDS, st.integers(2, 6), st.integers(1, 5), st.floats(0.05, 2))
def test_the_last_of_an_episode_gets_what_the_released_code_gives_it(seed, rows, width, ridge):
    """Its inverse is updated by each state before: C^-1 - u u^T / (1 + x^T u), u = C^-1 x."""
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    found = paid(x, ridge=ridge)
    unit = torch.nn.functional.normalize(x.double(), dim=1)
    for last in range(rows):
        inverse = torch.eye(width, dtype=torch.float64) / ridge
        for other in range(rows):
            if other != last:
                u = inverse @ unit[other]
                inverse -= torch.outer(u, u) / (1 + unit[other] @ u)
        assert float(found[last]) == pytest.approx(float(unit[last] @ inverse @ unit[last]), rel=1e-4)


@given(SEEDS)
def test_groups_are_episodes_of_their_own_and_unscored_rows_are_in_none(seed):
    draw = torch.Generator().manual_seed(seed)
    x, group = torch.randn(9, 4, generator=draw), torch.arange(9) % 3
    scored = torch.rand(9, generator=draw) < 0.8
    found = paid(x, group, scored=scored)
    for each in range(3):
        rows = (group == each) & scored
        if rows.any():
            torch.testing.assert_close(found[rows], paid(x[rows]))
    assert (found[~scored] == 0).all()


def test_what_is_incorrect_is_compared_with_and_paid_nothing():
    x, correct = [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], torch.tensor([1.0, 0.0, 0.0])
    everyone = paid(x, correct_only=False)
    assert paid(x, correct=correct).tolist() == pytest.approx([float(everyone[0]), 0, 0])
    assert everyone[2] > everyone[1] > 0.9


def test_alike_rows_of_a_run_are_paid_less(tmp_path, start):
    made = toys.trainer(
        tmp_path,
        start,
        toys.recipe(tmp_path),
        "presets=[elliptical]",
        "rlvr.shaping=[{kind: elliptical, correct_only: false}]",
        "rlvr.steps=1",
    )
    made.run()
    ((_, values),) = toys.history(tmp_path / "work")
    assert 0.01 / 3.1 - 1e-6 < values["reward/shaped_mean"] - values["reward/mean"] < 0.01 * 10
