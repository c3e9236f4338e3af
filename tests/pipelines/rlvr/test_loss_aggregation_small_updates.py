"""Denominators of small updates."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind


@pytest.mark.parametrize(
    ("kind", "weights"), [("fixed_length", [[0.25, 0.0]]), ("row_mean", [[1.0, 0.0]]), ("token_mean", [[1.0, 0.0]])]
)
def test_an_update_of_one_row_and_one_token(kind, weights):
    mask = torch.tensor([[True, False]])
    columns = {"mask": mask, "in_loss": mask[:, 0], "loss_share": mask.float(), "max_tokens": torch.tensor([4.0])}
    assert bind("rlvr.loss_aggregation", kind)(columns).tolist() == weights
    nothing = columns | {"in_loss": torch.tensor([False])}
    assert bind("rlvr.loss_aggregation", kind)(nothing).tolist() == [[0.0, 0.0]]
