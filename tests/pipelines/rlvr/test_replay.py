"""Replay: stored rows keep what they were sampled with, and the loss keeps its size."""

from __future__ import annotations

import io

import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind


def step_of(seed: int, number: int, width: int = 9):
    batch = toys.batch(seed=seed, width=width)
    draw = torch.Generator().manual_seed(seed)
    drawn = torch.randn(12, 1, generator=draw)
    drawn = drawn + 0.01 * drawn.sign()  # a millionth would pass for silent
    advantage = drawn * (torch.rand(12, 1, generator=draw) < 0.5) * batch.mask
    return columns_of(batch) | {"advantage": advantage, "step": number}


def teaches(columns):
    return columns["in_loss"] & ((columns["advantage"] * columns["mask"]) != 0).any(1)


@given(st.integers(0, 1000), st.integers(5, 12), st.integers(5, 12))
def test_silent_rows_give_way_to_stored_ones(seed, first, second):
    buffer = bind("rlvr.replay", "ssb").fn
    one, two = step_of(seed, 0, first), step_of(seed + 1, 1, second)
    assert buffer.extend(one, torch.Generator()) is one
    kept = int(teaches(one).sum())
    assert len(buffer.rows) == kept
    made = buffer.extend(two, torch.Generator().manual_seed(1))
    added = min(kept, int((two["in_loss"] & ~teaches(two)).sum()))
    assert len(made["group"]) == 12 + added
    assert int(made["in_loss"].sum()) == int(two["in_loss"].sum())
    assert int(teaches(made).sum()) == int(teaches(two).sum()) + added
    if added:
        assert made["on_policy"].tolist() == [True] * 12 + [False] * added
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
        buffer.extend(step_of(number, number), torch.Generator().manual_seed(number))
        assert len(buffer.rows) <= 5
    stored = io.BytesIO()
    torch.save(buffer.state_dict(), stored)
    stored.seek(0)
    again = bind("rlvr.replay", {"kind": "ssb", "capacity": 5, "max_age": 2}).fn
    again.load_state_dict(torch.load(stored, weights_only=True))
    mine, theirs = (b.extend(step_of(9, 4), torch.Generator().manual_seed(3)) for b in (buffer, again))
    for name, value in mine.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value.nan_to_num(-7), theirs[name].nan_to_num(-7)), name
    buffer.extend(step_of(10, 40) | {"advantage": torch.zeros(12, 9)}, torch.Generator())
    assert buffer.rows == []


def test_rows_are_drawn_in_proportion_to_their_advantage():
    buffer = bind("rlvr.replay", "ssb").fn
    seen = torch.zeros(4)
    for seed in range(1500):
        columns = step_of(0, 0)
        row = {k: v[0] for k, v in columns.items() if isinstance(v, torch.Tensor)}
        buffer.rows = [
            {"step": 0, "strength": s, "columns": row | {"raw_reward": torch.tensor(float(i))}}
            for i, s in enumerate((1.5, 0.5, 0.2, 0.2))
        ]
        silent = columns["in_loss"].clone()
        silent[:] = False
        silent[0] = True
        made = buffer.extend(
            columns | {"advantage": torch.zeros(12, 9), "in_loss": silent}, torch.Generator().manual_seed(seed)
        )
        seen[int(made["raw_reward"][12])] += 1
    torch.testing.assert_close(seen / 1500, torch.tensor([0.625, 0.208333, 0.083333, 0.083333]), atol=0.04, rtol=0)
