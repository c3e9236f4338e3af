"""A step of one row, and one of none."""

from __future__ import annotations

import math

import pytest
import torch

from pipelines.contract.catalogue import bind


@pytest.mark.parametrize(("in_loss", "rows"), [([True], 1), ([True, True], 2), ([False, False], 0)])
def test_the_mean_is_over_the_rows_in_the_loss(in_loss, rows):
    """Rows whose log-ratio is 1 have chi2 = e + 1/e - 2; without any the term is 0."""
    count = len(in_loss)
    columns = {
        "logp": torch.full((count, 2), 0.5), "logp_ref": torch.zeros(count, 2), "mask": torch.ones(count, 2).bool(),
        "in_loss": torch.tensor(in_loss), "weight": torch.full((count, 2), 1 / (2 * count)),
    }  # fmt: skip
    made = bind("rlvr.divergence", "chi2_occupancy")(columns)
    chi2 = math.e + 1 / math.e - 2
    assert made.mean().item() == pytest.approx(math.sqrt(chi2) - 0.01 if rows else 0.0, abs=1e-6)
