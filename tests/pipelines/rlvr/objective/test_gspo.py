"""The guard of GSPO's exponent."""

from __future__ import annotations

import math

import pytest
import torch

from pipelines.contract.catalogue import bind


@pytest.mark.parametrize("mean", [9.5, 10.0, 10.5, 30.0])
def test_the_exponent_is_clamped_at_10(mean):
    logp = torch.full((1, 2), mean)
    columns = {
        "logp": logp,
        "logp_old": torch.zeros(1, 2),
        "advantage": -torch.ones(1, 2),
        "mask": torch.ones(1, 2).bool(),
    }
    assert bind("rlvr.objective", "gspo")(columns)[0].tolist() == pytest.approx(
        [math.exp(min(mean, 10.0))] * 2, rel=1e-5
    )
