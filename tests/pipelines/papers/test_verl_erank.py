"""The effective rank of few states."""

from __future__ import annotations

import pytest
import torch

from pipelines.papers.verl_erank import effective_rank


def test_two_states_span_one_direction_and_one_none():
    assert effective_rank(torch.tensor([[1.0, 0.0], [0.0, 1.0]])) == pytest.approx(1.0, abs=1e-3)
    assert effective_rank(torch.ones(1, 2)) == 0.0


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (4, 4), (6, 4)])
def test_the_rank_is_exp_of_the_entropy_of_the_singular_values(rows, columns):
    states = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
    values = torch.linalg.svdvals((states - states.mean(0)).double())
    share = values / values.sum()
    wanted = torch.exp(-(share * (share + 1e-12).log()).sum())
    assert effective_rank(states) == pytest.approx(float(wanted), rel=1e-3)
