"""CANON's halves of small groups, by hand."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind


@pytest.mark.parametrize(
    ("rewards", "advantages"), [([1.0], [0.0]), ([1.0, 0.0], [0.5, -0.5]), ([0.0, 1.0, 1.0], [-0.5, 0.5, 0.5])]
)
def test_groups_of_one_two_and_three(rewards, advantages):
    """Sorted by length, as they stand: halves of 0 and 1, 1 and 1, 1 and 2 rows; both comparisons weigh the same."""
    rows = len(rewards)
    columns = {
        "reward": torch.tensor(rewards), "group": torch.zeros(rows).long(), "scored": torch.ones(rows).bool(),
        "mask": torch.ones(rows, 2).bool(), "entropy_old": torch.ones(rows, 2), "length": torch.arange(rows) + 1.0,
    }  # fmt: skip
    made = bind("rlvr.advantage", {"kind": "canon", "metric": "length", "mu": 0.5})(columns)
    assert made.tolist() == pytest.approx(advantages)
