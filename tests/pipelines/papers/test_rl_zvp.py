"""RL-ZVP against a loop."""

from __future__ import annotations

import statistics

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import graded, mates, tokens
from toys import columns_of

from pipelines.contract.catalogue import bind


@given(st.integers(0, 5_000), st.sampled_from([1e-6, 0.3]))
def test_against_a_loop(seed, eps):
    """The correctness decides, not the reward: a group of equal correctness may have different rewards."""
    batch = graded(toys.rough(seed), seed)
    batch.correct[batch.scored & (batch.group == 1)] = 1.0
    made = bind("rlvr.advantage", {"kind": "rl_zvp", "alpha": 0.5, "eps": eps})(columns_of(batch))
    for row in range(16):
        rows = mates(batch, row)
        rewards = [float(batch.reward[r]) for r in rows]
        for t in tokens(batch, row):
            entropy = float(batch.entropy_old[row, t])
            if len(rows) == 1:
                wanted = 0.0
            elif len({float(batch.correct[r]) for r in rows}) > 1:
                wanted = (float(batch.reward[row]) - statistics.fmean(rewards)) / (statistics.stdev(rewards) + eps)
            elif batch.correct[row] > 0:
                wanted = 0.5 * entropy
            else:
                wanted = -0.5 * (max(float(batch.entropy_old[row, s]) for s in tokens(batch, row)) - entropy)
            assert float(made[row, t]) == pytest.approx(wanted, abs=1e-4)
