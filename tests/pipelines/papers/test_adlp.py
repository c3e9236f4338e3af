"""The length price of A-DLP, by hand."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind

COLUMNS = {
    "reward": torch.tensor([1.0, 0.0, 1.0, 0.0]),
    "correct": torch.tensor([1.0, 0.0, 0.5, 1.0]),
    "scored": torch.tensor([True, True, True, False]),
    "length": torch.tensor([10.0, 20.0, 30.0, 40.0]),
}


@pytest.mark.parametrize(("only_correct", "shaped"), [(False, [0.9, -0.2, 0.7, 0.0]), (True, [0.9, 0.0, 0.7, -0.4])])
def test_scored_or_correct_rows_are_charged(only_correct, shaped):
    part = bind("rlvr.shaping", {"kind": "adlp", "price": 0.01, "only_correct": only_correct})
    assert part(COLUMNS).tolist() == pytest.approx(shaped)


def test_the_price_follows_the_accuracy_of_the_scored_rows():
    """1.5 of 3 are correct, 0.1 below the reference."""
    part = bind("rlvr.shaping", {"kind": "adlp", "price": 0.02, "rate": 0.1, "reference": 0.6})
    part(COLUMNS)
    assert part.fn.price == pytest.approx(0.01)
    part(COLUMNS)
    part(COLUMNS)
    assert part.fn.price == 0.0
    part(COLUMNS | {"scored": COLUMNS["scored"] & False})
    assert part.fn.price == 0.0
