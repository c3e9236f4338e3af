"""NGRPO against a loop."""

from __future__ import annotations

import statistics

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import graded, mates
from toys import columns_of

from pipelines.contract.catalogue import bind


@given(st.integers(0, 5_000), st.sampled_from([1, 3]), st.sampled_from([1e-6, 0.3]))
def test_against_a_loop(seed, virtual, eps):
    batch = graded(toys.rough(seed), seed)
    pair = batch.scored & (batch.group == 2)
    batch.scored[pair.nonzero()[:1].flatten()] = False  # leaves a group of two
    made = bind("rlvr.advantage", {"kind": "ngrpo", "best": 2.0, "virtual": virtual, "eps": eps})(columns_of(batch))
    for row in range(16):
        rewards = [float(batch.reward[r]) for r in mates(batch, row)]
        wanted = 0.0
        if batch.scored[row] and len(rewards) > 1 and set(rewards) != {2.0}:
            padded = rewards + [2.0] * virtual
            wanted = (float(batch.reward[row]) - statistics.fmean(padded)) / (statistics.stdev(padded) + eps)
        assert float(made[row]) == pytest.approx(wanted, rel=1e-4, abs=1e-5)
