"""Lower medians of groups of every size, against a loop."""

from __future__ import annotations

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import graded, mates
from toys import columns_of

from pipelines.contract.catalogue import bind


def lower_median(values):
    return sorted(values)[(len(values) - 1) // 2]


@given(st.integers(0, 5_000))
def test_against_a_loop(seed):
    batch = graded(toys.rough(seed), seed)
    made = bind("rlvr.advantage", {"kind": "mc_grpo", "floor": 0.5})(columns_of(batch))
    for row in range(16):
        rewards = [float(batch.reward[r]) for r in mates(batch, row)]
        wanted = 0.0
        if batch.scored[row]:
            median = lower_median(rewards)
            wanted = (float(batch.reward[row]) - median) / (lower_median([abs(r - median) for r in rewards]) + 0.5)
        assert float(made[row]) == pytest.approx(wanted, abs=1e-5)
