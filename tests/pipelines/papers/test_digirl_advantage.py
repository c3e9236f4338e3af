"""DigiRL's filter on the step advantage, against a loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loops import tokens
from toys import columns_of, rough

from pipelines.contract.catalogue import bind
from pipelines.papers.digirl import digirl_advantage as digirl


@given(st.integers(0, 5_000), st.sampled_from(["doubly_robust", "released"]), st.floats(0, 1), st.floats(-0.2, 0.6))
def test_against_a_loop(seed, form, lam, threshold):
    batch = rough(seed)
    columns = columns_of(batch) | {"token_penalty": torch.zeros(batch.mask.shape)}
    made = bind("rlvr.advantage", {"kind": "digirl", "form": form, "lam": lam, "threshold": threshold})(columns)
    turn, value, paid = (columns[name].tolist() for name in ("turn", "turn_value", "turn_reward"))
    for row in range(16):
        turns = sorted({turn[row][t] for t in tokens(batch, row)})
        own = dict.fromkeys(turns, 0.0)
        for k, amount in enumerate(paid[row]):
            if before := [s for s in turns if s <= k]:
                own[before[-1]] += amount
        expected = {}
        for place, k in enumerate(turns):
            next_value = value[row][turns[place + 1]] if place + 1 < len(turns) else 0.0
            outcome = sum(lam ** (later - k) * own[later] for later in turns[place:])
            progress = next_value + own[k] - value[row][k]
            expected[k] = outcome + (1 - outcome if form == "doubly_robust" else 1) * progress
        for t in tokens(batch, row):
            if abs(expected[turn[row][t]] - threshold) > 1e-4:
                assert made[row, t] == float(expected[turn[row][t]] > threshold)
    assert (made[~batch.mask] == 0).all()


EPISODE = {"turn": torch.tensor([[-1, 0, 0, 1, 2]]), "mask": torch.tensor([[False, True, True, True, True]])}


@pytest.mark.parametrize(
    ("form", "value", "outcome", "expected"),
    [
        ("released", [0.5, 0.2, 0.9], 1.0, [0, 1, 1]),  # 0.25 - 0.3, 0.5 + 0.7, 1 + 1 - 0.9
        ("doubly_robust", [0.5, 0.2, 0.9], 1.0, [0, 1, 1]),  # 0.25 - 0.75 * 0.3 = 0.025; 0.5 + 0.5 * 0.7; 1
        ("released", [0.2, 0.5, 0.4], 0.0, [1, 0, 0]),  # 0.3, -0.1, -0.4
        ("doubly_robust", [0.2, 0.5, 0.4], 0.0, [1, 0, 0]),
        ("released", [0.5, 0.28, 0.9], 1.0, [0, 1, 1]),  # 0.25 - 0.22 = 0.03
        ("doubly_robust", [0.5, 0.28, 0.9], 1.0, [1, 1, 1]),  # 0.25 - 0.75 * 0.22 = 0.085
    ],
)
def test_by_hand(form, value, outcome, expected):
    """Half of what is ahead is lost with each turn; 0.05 is the threshold."""
    paid = torch.tensor([[0.0, 0.0, outcome]])
    made = digirl(
        torch.tensor([value]),
        paid,
        EPISODE["turn"],
        paid.sum(1),
        torch.zeros(1, 5),
        EPISODE["mask"],
        torch.ones(1).bool(),
        form=form,
    )
    assert made.tolist() == [[0, expected[0], expected[0], expected[1], expected[2]]]
