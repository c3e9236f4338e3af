"""Shared tokens are told apart by node and position."""

from __future__ import annotations

import torch

from pipelines.contract.catalogue import bind


def test_a_long_row_s_positions_are_not_taken_for_another_node_s():
    """Two rows of six tokens: node 0 fills the first row, node 1 the second, and nothing is shared but the first token."""
    node = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1]])
    advantage = torch.tensor([[1.0] * 6, [0.0] * 6])
    made = bind("rlvr.credit", "arpo_hard")({"advantage": advantage, "mask": torch.ones(2, 6).bool(), "node": node})
    assert made.tolist() == [[0.5, 1, 1, 1, 1, 1], [0.5, 0, 0, 0, 0, 0]]
