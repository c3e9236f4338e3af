"""SIREN's anchor of a first step with one row, and with none."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind


def call(part, in_loss, step):
    """Two rows of four tokens with entropies 0.1 to 0.4 and 0.5 to 0.8; the largest of a row is above its quantile."""
    entropy = (torch.arange(8.0).view(2, 4) + 1) / 10
    mask = torch.ones(2, 4).bool()
    columns = {
        "entropy_top_p": entropy,
        "mask": mask,
        "in_loss": torch.tensor(in_loss),
        "weight": mask / 8,
        "step": step,
    }
    return float((part(columns) * columns["weight"]).sum())


def test_the_anchor_of_a_single_row_is_its_own():
    part = bind("rlvr.auxiliary_loss", "siren")
    assert call(part, [True, False], 0) == 0 and part.fn.anchor == pytest.approx(0.4)
    assert call(part, [True, True], 1) == pytest.approx(0.04)


def test_a_first_step_without_rows_has_the_anchor_0():
    part = bind("rlvr.auxiliary_loss", "siren")
    assert call(part, [False, False], 0) == 0 and part.fn.anchor == 0.0
    assert call(part, [True, True], 1) == pytest.approx(0.36)
