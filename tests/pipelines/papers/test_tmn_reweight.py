"""TMN-Reweight against a loop: tasks of several prompts, some with a single row."""

from __future__ import annotations

import math
import statistics

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import graded, mates
from toys import columns_of

from pipelines.contract.catalogue import bind


@given(st.integers(0, 5_000), st.sampled_from([0.0, 0.5, 0.8]), st.sampled_from([1e-6, 0.3]))
def test_against_a_loop(seed, smoothing, eps):
    batch = graded(toys.rough(seed), seed)
    batch.task = batch.group % 2
    spec = {"kind": "tmn_reweight", "gamma": 1.5, "smoothing": smoothing, "eps": eps}
    made = bind("rlvr.advantage", spec)(columns_of(batch))
    groups = {
        int(batch.group[r]): [float(batch.reward[m]) for m in mates(batch, r)] for r in range(16) if batch.scored[r]
    }
    for r in range(16):
        if not batch.scored[r]:
            assert float(made[r]) == 0
            continue
        g, reward = int(batch.group[r]), float(batch.reward[r])
        prompts = [rewards for other, rewards in groups.items() if other % 2 == g % 2]
        scale = math.sqrt(statistics.fmean(statistics.variance(p) if len(p) > 1 else 0.0 for p in prompts))
        mean = statistics.fmean(groups[g])
        threshold = smoothing * mean + (1 - smoothing) * statistics.fmean(statistics.fmean(p) for p in prompts)
        above = statistics.fmean(x > threshold + 1e-9 for x in groups[g])
        weight = math.exp(1.5 * (0.5 - above if reward > mean + 1e-9 else above - 0.5))
        assert float(made[r]) == pytest.approx((reward - mean) / (scale + eps) * weight, rel=1e-4, abs=1e-5)
