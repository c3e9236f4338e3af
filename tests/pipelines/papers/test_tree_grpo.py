"""Tree-GRPO against a loop."""

from __future__ import annotations

import statistics

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import graded, mates, tokens
from toys import columns_of

from pipelines.contract.catalogue import bind


def z_score(value, values):
    return (value - statistics.fmean(values)) / (statistics.stdev(values) + 1e-6) if len(values) > 1 else 0.0


@given(st.integers(0, 5_000))
def test_against_a_loop(seed):
    """Two trees a group, whose roots are numbered from the last group on; what stands before the first trained token is no root."""
    batch = graded(toys.rough(seed), seed)
    draw = torch.Generator().manual_seed(seed)
    root = 2 * (4 - batch.group) + torch.randint(0, 2, (16,), generator=draw)
    first = batch.mask & (batch.mask.cumsum(1) == 1)
    other = torch.randint(20, 40, batch.mask.shape, generator=draw)
    batch.node = torch.where(first, root[:, None], other)
    made = bind("rlvr.advantage", "tree_grpo")(columns_of(batch))
    for row in range(16):
        if not tokens(batch, row):
            assert float(made[row]) == 0
            continue
        rows = mates(batch, row)
        tree = [float(batch.reward[r]) for r in rows if root[r] == root[row]]
        wanted = z_score(float(batch.reward[row]), tree)
        wanted += z_score(float(batch.reward[row]), [float(batch.reward[r]) for r in rows])
        assert float(made[row]) == pytest.approx(wanted, abs=1e-4)
