"""PIPO's progress, shares and retrospective coefficients."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind
from pipelines.papers.pipo import shares

SEEDS = st.integers(0, 5_000)


@given(SEEDS)
def test_pipo_s_shares_add_up_to_the_group(seed):
    batch = toys.batch(seed=seed)
    advantage = torch.randn(12, 1, generator=torch.Generator().manual_seed(seed)) * batch.mask
    found = shares(advantage, batch.mask, batch.group, batch.in_loss)
    for group in range(3):
        mine = batch.group == group
        assert abs(float(found[mine].abs().sum()) - int(mine.sum())) < 1e-2
    assert (shares(advantage * 0, batch.mask, batch.group, batch.in_loss) == 0).all()


def step(rewards, scored=(True, True, True, True)):
    """Four rows of one group and two tokens; the first two have advantage 1, the others -1."""
    sign = torch.tensor([1.0, 1, -1, -1])[:, None]
    scored = torch.tensor(scored)
    mask = torch.ones(4, 2).bool() & scored[:, None]
    return {
        "raw_reward": torch.tensor(rewards), "scored": scored, "in_loss": scored.clone(), "group": torch.zeros(4).long(),
        "mask": mask, "advantage": sign * mask, "logp_old": -torch.ones(4, 2) * mask, "on_policy": scored.clone(),
        "replayed": scored & False, "step": 0,
    }  # fmt: skip


def coefficients(*steps, **settings):
    """C of the first token of each row of the retrospective update of each step, or None."""
    replay = bind("rlvr.replay", {"kind": "pipo", **settings}).fn
    out = []
    for columns in steps:
        updates = replay.updates(columns, torch.Generator())
        assert updates[-1].columns is columns and [u.replayed for u in updates[:-1]] == [True] * (len(updates) - 1)
        out.append(updates[0].columns["advantage"][:, 0].tolist() if len(updates) == 2 else None)
    return out


def test_progress_pushes_again_and_a_setback_takes_a_tenth_back():
    """Of one group of four equal shares: C = +-xi; the window of one step has no deviation, so xi is the difference."""
    made = coefficients(step([0.0] * 4), step([0.5] * 4), step([0.25] * 4), step([0.25] * 4), window=1)
    assert made[0] is None and made[3] is None
    assert made[1] == pytest.approx([0.5, 0.5, -0.5, -0.5], abs=1e-5)
    assert made[2] == pytest.approx([-0.025, -0.025, 0.025, 0.025], abs=1e-6)


def test_xi_and_the_coefficients_are_bounded():
    """xi by 5 before the division by the deviation, C by 10: here the window has the deviation 1/4."""
    made = coefficients(step([0.0] * 4), step([0.5] * 4), step([9.0] * 4), window=2, start=2)
    assert made[2] == pytest.approx([10, 10, -10, -10])
    made = coefficients(step([0.0] * 4), step([0.5] * 4), step([-9.0] * 4), window=2, start=2, regress=1.0)
    assert made[2] == pytest.approx([-10, -10, 10, 10])


def test_the_mean_reward_is_that_of_the_scored_rows():
    """Whatever reward the others have; a step in which nothing was scored says nothing and leaves no rows to go back to."""
    half = (True, False, True, False)
    made = coefficients(step([0.0] * 4), step([0.5, 9.0, 0.5, 9.0], half), step([0.5] * 4), window=1)
    assert made[1] == pytest.approx([0.5, 0.5, -0.5, -0.5], abs=1e-5) and made[2] is None
    one = (True, False, False, False)
    assert coefficients(step([0.0] * 4), step([0.5, 9, 9, 9], one), window=1)[1][0] == pytest.approx(0.5, abs=1e-5)
    none = (False,) * 4
    made = coefficients(step([0.5] * 4), step([9.0] * 4, none), step([1.0] * 4), step([2.0] * 4), window=1, regress=1.0)
    assert made[1] is None and made[2] is None and made[3] == pytest.approx([1, 1, -1, -1], abs=1e-5)


def test_only_rows_that_the_policy_has_just_drawn_show_progress():
    """Carried rows have the rewards of older weights, and train in a step's own update: in the next step they come back too."""
    half, none = torch.tensor([True, False, True, False]), torch.zeros(4).bool()
    mixed = step([0.5, 9.0, 0.5, 9.0]) | {"on_policy": half}
    made = coefficients(step([0.0] * 4), mixed, step([9.0] * 4) | {"on_policy": none}, step([1.0] * 4), window=1)
    assert made[1] == pytest.approx([0.5, 0.5, -0.5, -0.5], abs=1e-5) and made[2] is None
    assert made[3] == pytest.approx([0.5, 0.5, -0.5, -0.5], abs=1e-5), "from the 1/2 that was measured last to 1"


def test_nothing_happens_before_the_window_holds_enough_steps_or_at_the_threshold():
    steps = [step([float(i)] * 4) for i in (0, 1, 2)]
    assert [c is None for c in coefficients(*steps, window=2, start=2)] == [True, True, False]
    assert [c is None for c in coefficients(*steps, window=1, threshold=1.0)] == [True, True, True]
    assert [c is None for c in coefficients(*steps, window=1, threshold=0.9)] == [True, False, False]


def test_only_the_latest_steps_of_the_window_count():
    """0, 1, 1: a window of two has forgotten the 0, and 1 is no progress against it."""
    steps = [step([float(i)] * 4) for i in (0, 1, 1, 1)]
    assert [c is None for c in coefficients(*steps, window=2, start=1)] == [True, False, False, True]
