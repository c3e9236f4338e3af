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


def test_an_unscored_row_is_neither_correct_nor_incorrect():
    """The third row's 50 tokens would be the longest correct ones, or raise the incorrect rows' mean above 20."""
    columns = {
        "advantage": torch.ones(3, 1), "group": torch.zeros(3).long(), "scored": torch.tensor([True, True, False]),
        "max_tokens": torch.full((3,), 100.0),
    }  # fmt: skip
    adora = bind("rlvr.credit", "adora")
    for lengths, outcome, factor in (([10.0, 20.0, 50.0], 1.0, 0.1), ([20.0, 10.0, 50.0], 0.0, 1.0)):
        made = adora(columns | {"length": torch.tensor(lengths), "correct": torch.tensor([1.0, 0.0, outcome])})
        assert made[0].item() == pytest.approx(factor)
