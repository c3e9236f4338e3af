"""HAPO's baseline, by hand: groups of one token and the bound at which rows are compared instead."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind


def hapo(rewards, lengths, **settings):
    rows = len(rewards)
    columns = {
        "reward": torch.tensor(rewards), "group": torch.zeros(rows).long(), "scored": torch.ones(rows).bool(),
        "mask": torch.arange(4) < torch.tensor(lengths)[:, None],
    }  # fmt: skip
    return bind("rlvr.advantage", {"kind": "hapo", **settings})(columns).tolist()


def test_a_single_token_has_nothing_to_be_compared_with():
    assert hapo([1.0], [1]) == [0.0]


@pytest.mark.parametrize(("most", "size"), [(0.5, 0.5 / (0.5**0.5 + 0.5)), (0.51, 0.5)])
def test_a_group_that_reaches_the_bound_is_compared_by_rows(most, size):
    """Two rows of one token: by token |A| = 0.5 / (0.5 + eps) = 1/2 exactly; by row the deviation has ddof 1."""
    assert hapo([1.0, 0.0], [1, 1], most=most, eps=0.5) == pytest.approx([size, -size])
