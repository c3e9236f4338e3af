"""PIPO's shares."""

from __future__ import annotations

import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.rlvr.replay.pipo import shares

SEEDS = st.integers(0, 5_000)


@given(SEEDS)
def test_pipo_s_shares_add_up_to_the_group(seed):
    batch = toys.batch(seed=seed)
    advantage = torch.randn(12, 1, generator=torch.Generator().manual_seed(seed)) * batch.mask
    found = shares(advantage, batch.mask, batch.group, batch.in_loss)
    for group in range(3):
        mine = batch.group == group
        assert abs(float(found[mine].abs().sum()) - int(mine.sum())) < 1e-2
    assert (shares(advantage * 0, batch.mask, batch.group, batch.in_loss) == 0).all()
