"""Credit against loops: what a part does to each token, with unscored rows, hints and shared tokens among them."""

from __future__ import annotations

import math

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind

SEEDS = st.integers(0, 5_000)


def with_advantage(seed):
    """A batch, and an advantage that differs from token to token."""
    batch = toys.batch(seed=seed)
    draw = torch.Generator().manual_seed(seed + 1)
    return batch, torch.randn(batch.mask.shape, generator=draw) * batch.mask


def without(batch, rows):
    """The batch as it is packed when some rows could not be scored."""
    batch.scored[rows] = batch.in_loss[rows] = False
    batch.mask[rows] = False
    return batch


@given(SEEDS)
def test_arpo_hard_against_a_loop(seed):
    batch, advantage = with_advantage(seed)
    draw = torch.Generator().manual_seed(seed)
    node = torch.where(
        torch.rand(batch.mask.shape, generator=draw) < 0.8, torch.randint(0, 3, batch.mask.shape, generator=draw), -1
    )
    made = bind("rlvr.credit", "arpo_hard")(columns_of(batch) | {"advantage": advantage, "node": node})
    for row in range(12):
        for t in range(batch.mask.shape[1]):
            wanted = float(advantage[row, t])
            if batch.mask[row, t] and node[row, t] >= 0:
                shared = [float(advantage[r, t]) for r in range(12) if batch.mask[r, t] and node[r, t] == node[row, t]]
                wanted = sum(shared) / len(shared)
            assert float(made[row, t]) == pytest.approx(wanted, abs=1e-6)


@given(SEEDS)
def test_adora_against_a_loop(seed):
    batch, advantage = with_advantage(seed)
    draw = torch.Generator().manual_seed(seed)
    batch.length = torch.randint(1, 100, (12,), generator=draw).float()
    batch.max_tokens = torch.full((12,), 100.0)
    batch = without(batch, [4, 8])
    batch.length[4], batch.length[8] = 99.0, 1.0
    made = bind("rlvr.credit", {"kind": "adora", "cap": 0.5, "weight": 0.25})(
        columns_of(batch) | {"advantage": advantage}
    )
    for group in range(3):
        rows = [r for r in range(12) if batch.group[r] == group and batch.scored[r]]
        correct = [float(batch.length[r]) for r in rows if batch.correct[r] > 0]
        short = [float(batch.length[r]) for r in rows if batch.correct[r] <= 0 and batch.length[r] < 50]
        mean = sum(short) / len(short) if short else -math.inf
        factor = 1.0 if correct and max(correct) > mean else 0.25
        for r in rows:
            torch.testing.assert_close(made[r], advantage[r] * factor)


@given(SEEDS, st.integers(0, 9))
def test_d3s_against_a_loop(seed, step):
    """Rows by brute force over what stays, tokens by sorting; both shares move linearly, the last step has the final ones."""
    from itertools import combinations

    batch, advantage = with_advantage(seed)
    batch = without(batch, [2, 3, 4, 5, 7])
    batch.entropy_old = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(seed + 2)) + 0.1
    settings = {"rows": 0.25, "rows_final": 0.75, "tokens": 0.2, "tokens_final": 0.9}
    columns = columns_of(batch) | {"advantage": advantage, "step": step, "total_steps": 10}
    kept, share = bind("rlvr.credit", {"kind": "d3s", **settings})(columns)
    progress = step / 9
    live = [r for r in range(12) if batch.mask[r].any()]
    mean = {r: float(advantage[r][batch.mask[r]].double().mean()) for r in live}
    want = max(1, round(((1 - progress) * 0.25 + progress * 0.75) * len(live)))
    chosen = max(combinations(live, want), key=lambda c: torch.tensor([mean[r] for r in c]).var(correction=0))
    tokens = [(r, t) for r in chosen for t in batch.mask[r].nonzero().flatten().tolist()]
    tokens.sort(key=lambda p: -float(advantage[p].abs() * batch.entropy_old[p]))
    count = max(1, round(((1 - progress) * 0.2 + progress * 0.9) * len(tokens)))
    inside = torch.zeros_like(batch.mask)
    for place in tokens[:count]:
        inside[place] = True
    if want > 1:  # of single rows each has the same variance, none
        assert torch.equal(share > 0, inside)
        torch.testing.assert_close(kept, advantage * inside)


def test_d3s_of_one_step_and_of_one_row():
    batch, advantage = with_advantage(0)
    columns = columns_of(batch) | {"advantage": advantage, "step": 0, "total_steps": 1}
    kept, share = bind("rlvr.credit", {"kind": "d3s", "rows": 0.01, "tokens": 0.01})(columns)
    assert int(share.sum()) == 1 and int((kept != 0).sum()) == 1


@given(SEEDS)
def test_hints_are_imitated_and_whole_demonstrations_are_not(seed):
    batch, advantage = with_advantage(seed)
    batch.teacher_forced = batch.mask & (batch.mask.cumsum(1) <= 1)
    batch.teacher_forced[0] = batch.mask[0]
    made = bind("rlvr.credit", {"kind": "imitate", "weight": 0.5})(columns_of(batch) | {"advantage": advantage})
    for row in range(12):
        hint = batch.teacher_forced[row] & bool((batch.mask[row] & ~batch.teacher_forced[row]).any())
        torch.testing.assert_close(made[row], torch.where(hint, torch.tensor(0.5), advantage[row]))


def test_a_gate_has_a_threshold_for_each_sign():
    advantage, entropy = torch.tensor([[0.5, 0.5, -0.5, -0.5]]), torch.tensor([[1.0, 3.0, 1.0, 3.0]])
    gate = bind("rlvr.credit", {"kind": "entropy_gate", "right": 2.0, "wrong": 0.5})
    kept, share = gate({"advantage": advantage, "entropy_old": entropy})
    assert kept.tolist() == [[0.0, 0.5, -0.5, -0.5]] and share.tolist() == [[0.0, 1.0, 1.0, 1.0]]
    assert gate({"advantage": advantage, "entropy_old": torch.tensor([[2.0] * 4])})[1].tolist() == [
        [0.0, 0.0, 1.0, 1.0]
    ]
