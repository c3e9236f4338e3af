"""GRPO-S with a large `eps` and groups of every kind, against a loop."""

from __future__ import annotations

import statistics

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import mates, tokens
from toys import columns_of

from pipelines.contract.catalogue import bind


@given(st.integers(0, 5_000), st.sampled_from(["together", "apart", "none"]))
def test_against_a_loop(seed, normalise):
    batch = toys.rough(seed)
    batch.correct = batch.correct * batch.scored
    spec = {"kind": "grpo_s", "normalise": normalise, "share": 0.7, "base": 0.5, "eps": 0.2}
    made = bind("rlvr.advantage", spec)(columns_of(batch))
    entropy = {
        r: statistics.fmean(float(batch.entropy_old[r, t]) for t in tokens(batch, r))
        for r in range(16)
        if batch.scored[r]
    }
    side = {r: [m for m in mates(batch, r) if batch.correct[m] == batch.correct[r]] for r in entropy}
    weight = {r: h if batch.correct[r] > 0 else 1 / (h + 0.2) for r, h in entropy.items()}
    shaped = {
        r: (1 if batch.correct[r] > 0 else -1)
        * (0.5 + 0.7 * len(side[r]) * weight[r] / sum(weight[m] for m in side[r]))
        for r in entropy
    }
    for r in range(16):
        wanted = shaped.get(r, 0.0)
        if normalise != "none" and r in shaped:
            values = [shaped[m] for m in (side[r] if normalise == "apart" else mates(batch, r))]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            wanted = 0.0 if spread < 1e-7 else (shaped[r] - statistics.fmean(values)) / (spread + 0.2)
        assert float(made[r]) == pytest.approx(wanted, abs=1e-4)
