"""Which incorrect rows enter ADORA's mean, by hand."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind


@pytest.mark.parametrize(("incorrect", "factor"), [(74.0, 0.1), (75.0, 1.0), (76.0, 1.0)])
def test_a_row_at_the_cap_is_left_out(incorrect, factor):
    """The cap is three quarters of 100; the correct row has 10 tokens."""
    columns = {
        "advantage": torch.ones(2, 1), "correct": torch.tensor([1.0, 0.0]), "group": torch.zeros(2).long(),
        "scored": torch.ones(2).bool(), "length": torch.tensor([10.0, incorrect]), "max_tokens": torch.full((2,), 100.0),
    }  # fmt: skip
    made = bind("rlvr.credit", {"kind": "adora", "cap": 0.75, "weight": 0.1})(columns)
    assert made.flatten().tolist() == pytest.approx([factor] * 2)
