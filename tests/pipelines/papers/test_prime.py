"""PRIME's advantage against a loop."""

from __future__ import annotations

import statistics

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import graded, mates, tokens
from toys import columns_of

from pipelines.contract.catalogue import bind


@given(st.integers(0, 5_000))
def test_against_a_loop(seed):
    """Groups of one, two, three and more in one batch; a row alone has nothing to be compared with."""
    batch = graded(toys.rough(seed), seed)
    spec = {"kind": "prime", "outcome_weight": 2.0, "process_weight": 3.0}
    made = bind("rlvr.advantage", spec)(columns_of(batch))
    raw = {}
    for row in range(16):
        rows, n = mates(batch, row), len(mates(batch, row))
        process = {r: [float(batch.process_reward[r, t]) for t in tokens(batch, r)] for r in rows}
        base = sum(statistics.fmean(values) for values in process.values()) / (n - 1) if n > 1 else 0.0
        outcome = (
            n / (n - 1) * (float(batch.reward[row]) - statistics.fmean(float(batch.reward[r]) for r in rows))
            if n > 1
            else 0.0
        )
        ahead = 0.0
        for t, paid in reversed(list(zip(tokens(batch, row), process.get(row, []), strict=True))):
            ahead += n / (n - 1) * paid - base if n > 1 else 0.0
            raw[row, t] = 3.0 * ahead + 2.0 * outcome
    mean, spread = statistics.fmean(raw.values()), statistics.stdev(raw.values())
    for row in range(16):
        for t in range(batch.mask.shape[1]):
            wanted = (raw[row, t] - mean) / spread if (row, t) in raw else 0.0
            assert float(made[row, t]) == pytest.approx(wanted, abs=1e-4)
