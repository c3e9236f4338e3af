"""Filters with demonstrations and unscored rows among the rollouts."""

from __future__ import annotations

import math

import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method, with_demonstrations
from toys import columns_of

from pipelines.contract.catalogue import bind, names

ROWS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=12)


def columns(rows):
    """(correct, scored, demonstration) of rows in three groups; packing leaves an unscored row without a token."""
    correct, scored, demo = (torch.tensor(x) for x in zip(*rows, strict=True))
    return {
        "correct": correct.float(), "length": torch.ones(len(rows)),
        "scored": scored, "in_loss": scored.clone(), "group": torch.arange(len(rows)) % 3,
        "teacher_forced": (demo & scored)[:, None], "mask": scored[:, None].clone(),
    }  # fmt: skip


@given(ROWS, st.integers(-1, 3))
def test_hpt_gate_against_a_loop(rows, gate):
    made = bind("rlvr.filter", {"kind": "hpt_gate", "gate": gate})(columns(rows))
    for n, (_, scored, demo) in enumerate(rows):
        group = rows[n % 3 :: 3]
        solved = sum(c for c, s, d in group if s and not d)
        imitated = solved <= gate and any(s and d for _, s, d in group)
        if scored:
            assert bool(made[n]) == (demo == imitated)


def test_hpt_gate_needs_a_demonstration_that_was_scored():
    gate = bind("rlvr.filter", "hpt_gate")
    made = gate(columns([(False, True, False), (False, True, False), (False, True, False), (True, False, True)]))
    assert made[:3].tolist() == [True] * 3


def test_rows_by_their_correctness():
    body = columns([(True, True, False), (False, True, False), (True, False, False), (False, False, False)])
    body |= {"reward": body["correct"], "group": torch.zeros(4, dtype=torch.int64)}
    body |= {"parsable": torch.ones(4, dtype=torch.bool), "truncated": torch.zeros(4, dtype=torch.bool)}
    found = {
        name: bind("rlvr.filter", name)(body) & body["in_loss"] for name in names("rlvr.filter") if name != "hpt_gate"
    }
    for made in found.values():
        assert made.dtype == torch.bool and not made[2:].any()


SEEDS = st.integers(0, 5_000)


@given(SEEDS)
def test_every_problem_is_imitated_or_explored(seed):
    batch, demo = with_demonstrations(seed)
    for gate in (-1, 0, 1, 3):
        kept = run_method("filter", {"kind": "hpt_gate", "gate": gate}, batch)
        for group in range(4):
            mine = batch.group == group
            right = int(batch.correct[mine & ~demo].sum())
            wanted = demo if right <= gate else ~demo
            assert torch.equal(kept[mine], wanted[mine])


@given(st.integers(0, 5_000), st.sampled_from(["length", "efficiency"]), st.sampled_from([0.25, 0.5, 1.0]))
def test_gfpo_against_sorted_groups(seed, by, share):
    batch = toys.batch(seed=seed)
    draw = torch.Generator().manual_seed(seed)
    batch.scored = torch.rand(12, generator=draw) < 0.8
    columns = columns_of(batch) | {"length": torch.randint(1, 6, (12,), generator=draw).float()}
    kept = bind("rlvr.filter", {"kind": "gfpo", "by": by, "share": share})(columns)
    for group in batch.group.unique().tolist():
        rows = [row for row in range(12) if batch.group[row] == group and batch.scored[row]]
        length = columns["length"].tolist()
        order = sorted(rows, key=lambda row: length[row] if by == "length" else -float(batch.reward[row]) / length[row])
        wanted = set(order[: max(1, math.floor(len(rows) * share))])
        assert {row for row in range(12) if batch.group[row] == group and kept[row]} == wanted
