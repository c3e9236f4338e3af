"""Replay: stored rows keep what they were sampled with, and the loss keeps its size."""

from __future__ import annotations

import io

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind
from pipelines.contract.columns import COLUMNS
from pipelines.contract.method import PolicyUpdate, own_update
from pipelines.rlvr.common.stored_rows import append, row_of, stack


def step_of(seed: int, number: int, width: int = 9):
    batch = toys.batch(seed=seed, width=width)
    draw = torch.Generator().manual_seed(seed)
    drawn = torch.randn(12, 1, generator=draw)
    drawn = drawn + 0.01 * drawn.sign()  # a millionth would pass for zero
    advantage = drawn * (torch.rand(12, 1, generator=draw) < 0.5) * batch.mask
    return columns_of(batch) | {"advantage": advantage, "step": number}


def own_columns(replay, columns, seed=0):
    """The columns of the step's own update, of a replay that returns no other."""
    (own,) = replay.updates(columns, torch.Generator().manual_seed(seed))
    assert not own.replayed
    return own.columns


def teaches(columns):
    return columns["in_loss"] & ((columns["advantage"] * columns["mask"]) != 0).any(1)


@pytest.mark.slow
@given(st.integers(0, 1000), st.integers(5, 12), st.integers(5, 12))
def test_zero_advantage_rows_give_way_to_stored_ones(seed, first, second):
    buffer = bind("rlvr.replay", "ssb").fn
    one, two = step_of(seed, 0, first), step_of(seed + 1, 1, second)
    assert own_columns(buffer, one) is one
    kept = int(teaches(one).sum())
    assert len(buffer.rows) == kept
    made = own_columns(buffer, two, 1)
    added = min(kept, int((two["in_loss"] & ~teaches(two)).sum()))
    assert len(made["group"]) == 12 + added
    assert int(made["in_loss"].sum()) == int(two["in_loss"].sum())
    assert int(teaches(made).sum()) == int(teaches(two).sum()) + added
    if added:
        assert made["replayed"].tolist() == [False] * 12 + [True] * added
        assert len(made["group"][12:].unique()) == added and made["group"][12:].min() > two["group"].max()
        olds = {tuple(r["logp_old"][m].tolist()) for r, m in zip(_rows(one), one["mask"], strict=True)}
        for row in range(12, 12 + added):
            assert tuple(made["logp_old"][row][made["mask"][row]].tolist()) in olds
    assert (two["in_loss"] == step_of(seed + 1, 1, second)["in_loss"]).all(), "the step's own columns are left alone"


def _rows(columns):
    return [{k: v[i] for k, v in columns.items() if isinstance(v, torch.Tensor)} for i in range(12)]


def test_age_capacity_and_a_restart():
    buffer = bind("rlvr.replay", {"kind": "ssb", "capacity": 5, "max_age": 2}).fn
    for number in range(4):
        own_columns(buffer, step_of(number, number), number)
        assert len(buffer.rows) <= 5
    stored = io.BytesIO()
    torch.save(buffer.state_dict(), stored)
    stored.seek(0)
    again = bind("rlvr.replay", {"kind": "ssb", "capacity": 5, "max_age": 2}).fn
    again.load_state_dict(torch.load(stored, weights_only=True))
    straight, restarted = (own_columns(b, step_of(9, 4), 3) for b in (buffer, again))
    for name, value in straight.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value.nan_to_num(-7), restarted[name].nan_to_num(-7)), name
    own_columns(buffer, step_of(10, 40) | {"advantage": torch.zeros(12, 9)})
    assert buffer.rows == []


@pytest.mark.slow
@pytest.mark.long
def test_rows_are_drawn_in_proportion_to_their_advantage():
    buffer = bind("rlvr.replay", "ssb").fn
    drawn = torch.zeros(4)
    for seed in range(1500):
        columns = step_of(0, 0)
        row = {k: v[0] for k, v in columns.items() if isinstance(v, torch.Tensor)}
        buffer.rows = [
            {"step": 0, "strength": s, "columns": row | {"raw_reward": torch.tensor(float(i))}}
            for i, s in enumerate((1.5, 0.5, 0.2, 0.2))
        ]
        in_loss = torch.arange(12) < 1
        trained = own_columns(buffer, columns | {"advantage": torch.zeros(12, 9), "in_loss": in_loss}, seed)
        drawn[int(trained["raw_reward"][12])] += 1
    torch.testing.assert_close(drawn / 1500, torch.tensor([0.625, 0.208333, 0.083333, 0.083333]), atol=0.04, rtol=0)


@pytest.mark.slow
@given(st.integers(0, 1000), st.integers(5, 12), st.integers(5, 12))
def test_the_retrospective_update_holds_the_step_before_and_comes_first(seed, first, second):
    replay = bind("rlvr.replay", {"kind": "pipo", "window": 1}).fn
    one, two = step_of(seed, 0, first), step_of(seed + 1, 1, second)
    two["raw_reward"] = one["raw_reward"] + 1.0
    two["scored"] = one["scored"]
    assert own_columns(replay, one) is one
    before, own = replay.updates(two, torch.Generator())
    assert before.replayed and before.split and not own.replayed and own.columns is two
    in_loss = one["in_loss"]
    for name in ("token", "logp_old", "mask", "group", "turn"):
        assert torch.equal(before.columns[name], one[name][in_loss]), name
    assert before.columns["replayed"].all() and before.columns["step"] == 1
    sign = (before.columns["advantage"] * one["advantage"][in_loss]).sum(1).sign()
    assert torch.equal(sign, one["advantage"][in_loss].abs().sum(1).sign()), "after progress it goes on as before"


def test_a_setback_is_taken_back_or_left_alone():
    for regress, count in ((0.1, 2), (0.0, 1)):
        replay = bind("rlvr.replay", {"kind": "pipo", "window": 1, "regress": regress}).fn
        one, two = step_of(3, 0), step_of(3, 1)
        two["raw_reward"] = one["raw_reward"] - 1.0
        own_columns(replay, one)
        updates = replay.updates(two, torch.Generator())
        assert len(updates) == count
        if count == 2:
            in_loss = one["in_loss"]
            assert (updates[0].columns["advantage"] * one["advantage"][in_loss]).sum() < 0


@pytest.mark.slow
@given(st.integers(0, 1000), st.integers(4, 12), st.integers(4, 12))
def test_stored_rows_without_a_column_have_zeros_and_their_whole_share(seed, first, second):
    one, two = step_of(seed, 0, first), step_of(seed + 1, 1, second)
    lacking = ("logp_ref", "loss_share", "advantage", "reward", "hidden_stats", "turn_reward")
    stored = [{k: v for k, v in row_of(one, index).items() if k not in lacking} for index in (0, 5)]
    alone, joined = stack(stored, two), append(two, stored)
    for name, value in two.items():
        if isinstance(value, torch.Tensor):
            assert len(alone[name]) == 2 and len(joined[name]) == 14 and alone[name].dtype == value.dtype
            if name not in ("on_policy", "replayed"):
                kept = joined[name][:12, : value.shape[1]] if value.ndim > 1 else joined[name][:12]
                torch.testing.assert_close(kept, value, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(alone["loss_share"], alone["mask"].float())
    assert not alone["advantage"].any() and not alone["reward"].any()
    assert {alone[name].shape for name, column in COLUMNS.items() if column.shape == "B T" and name in alone} == {
        alone["mask"].shape
    }


@pytest.mark.parametrize("count", [0, 2])
def test_a_step_has_one_update_of_its_own(count):
    with pytest.raises(ValueError, match=rf"one update that is not replayed.*got {count}"):
        own_update([PolicyUpdate({}, replayed=True)] + [PolicyUpdate({})] * count)
