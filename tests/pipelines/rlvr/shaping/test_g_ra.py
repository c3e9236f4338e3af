"""Gated turn rewards, by hand."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind


@pytest.mark.parametrize(
    ("turns", "states", "beyond", "shaped"),
    [
        ([0.25, 1.0, 0.0], [5, 6, -1], 0.0, 1.0 + 0.5 * 0.25),  # the last turn is the second
        ([0.25, 0.0, 0.0], [5, 0, -1], 0.0, 0.0),  # an outcome of 0 is not above 0; a state may be 0
        ([0.25, 0.0, 0.0], [5, 6, -1], 0.5, 0.5 + 0.5 * 0.25),  # what it earned beyond its turns belongs to the outcome
        ([0.5, 0.0, 0.0], [0, -1, -1], 0.0, 0.5),  # one turn: nothing earlier
        ([0.0, 0.0, 0.0], [-1, -1, -1], 0.75, 0.75),  # none
    ],
)
def test_earlier_turns_count_where_the_outcome_is_good(turns, states, beyond, shaped):
    rewards = torch.tensor([turns])
    columns = {"reward": rewards.sum(1) + beyond, "turn_reward": rewards, "turn_state": torch.tensor([states])}
    assert bind("rlvr.shaping", "g_ra")(columns).tolist() == pytest.approx([shaped])


def test_a_row_without_turns_has_its_outcome_alone_though_others_have_turns():
    """Whatever stands in the turns of a row that has none: nothing does."""
    columns = {
        "reward": torch.tensor([1.0, 0.5]), "turn_reward": torch.tensor([[0.5, 0.5], [0.0, 0.0]]),
        "turn_state": torch.tensor([[1, 2], [-1, -1]]),
    }  # fmt: skip
    assert bind("rlvr.shaping", "g_ra")(columns).tolist() == pytest.approx([0.75, 0.5])
