"""Hinted and unhinted rows against a loop, with graded rewards."""

from __future__ import annotations

import statistics

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import graded, mates
from toys import columns_of

from pipelines.contract.catalogue import bind


@given(st.integers(0, 5_000), st.sampled_from([1e-6, 0.3]), st.sampled_from([0.2, 0.5, 0.8]))
def test_against_a_loop(seed, eps, share):
    """Small groups, so some have only one kind; correctness is no function of the reward, so some have no failure."""
    batch = graded(toys.rough(seed), seed)
    draw = torch.Generator().manual_seed(seed)
    batch.correct = torch.where(batch.group == 2, batch.scored.float(), batch.correct)
    hinted = (torch.rand(16, generator=draw) < share) & batch.scored
    batch.teacher_forced = batch.mask & hinted[:, None] & (batch.mask.cumsum(1) <= 1)
    made = bind("rlvr.advantage", {"kind": "adhint", "eps": eps})(columns_of(batch))
    for row in range(16):
        kinds = {k: [r for r in mates(batch, row) if bool(hinted[r]) == k] for k in (False, True)}
        own = [float(batch.reward[r]) for r in kinds[bool(hinted[row])]]
        if not batch.scored[row]:
            assert float(made[row]) == 0
            continue
        value = (float(batch.reward[row]) - statistics.fmean(own)) / (statistics.pstdev(own) + eps)
        weight = 0.5
        if kinds[False] and kinds[True]:
            plain, helped = (statistics.fmean(1 - float(batch.correct[r]) for r in kinds[k]) for k in (False, True))
            weight = plain / (plain + helped) if plain + helped else 0.5
        up = 1 - weight if hinted[row] else weight
        assert float(made[row]) == pytest.approx(value * 2 * (up if value > 0 else 1 - up), abs=1e-4)
