"""PACS against a loop."""

from __future__ import annotations

import math
import statistics

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import mates, tokens
from toys import columns_of

from pipelines.contract.catalogue import bind


@given(st.integers(0, 5_000), st.booleans())
def test_against_a_loop(seed, balanced):
    batch = toys.rough(seed)
    batch.scored[(batch.group == 1).nonzero()[0]] = False  # a group of two
    batch.mask &= batch.scored[:, None]
    logp = batch.logp_old + 0.1 * batch.entropy_old
    made = bind("rlvr.objective", {"kind": "pacs", "beta": 0.5, "balanced": balanced})(
        columns_of(batch) | {"logp": logp}
    )
    score = {r: 0.5 * sum(float(logp[r, t] - batch.logp_old[r, t]) for t in tokens(batch, r)) for r in range(16)}
    for r in batch.mask.any(1).nonzero().flatten().tolist():
        rows = mates(batch, r)
        others = [score[m] for m in rows if m != r]
        psi = score[r] - (statistics.fmean(others) if others else 0.0)
        loss = math.log1p(math.exp(psi if batch.correct[r] == 0 else -psi))
        same = [m for m in rows if batch.correct[m] == batch.correct[r]]
        if balanced and len(same) < len(rows):
            loss *= len(rows) / (2 * len(same))
        for t in tokens(batch, r):
            assert float(made[r, t]) == pytest.approx(loss, rel=1e-4)
