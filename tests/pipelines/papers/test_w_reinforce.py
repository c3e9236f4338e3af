"""Incorrect rows that may train."""

from __future__ import annotations

import torch

from pipelines.contract.catalogue import bind


def test_a_row_that_left_the_loss_stays_out():
    columns = {"correct": torch.tensor([0.0, 0.0, 1.0]), "in_loss": torch.tensor([True, False, True])}
    assert bind("rlvr.filter", "incorrect")(columns).tolist() == [True, False, False]
