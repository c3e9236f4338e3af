"""HeRL's mixed loss."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.papers.herl import herl_objective as herl
from pipelines.rlvr.objective.clip import clip


@pytest.mark.parametrize(
    ("gamma", "weights"), [(1.0, [0.119203, 0.5, 0.622459]), (0.1, [0.575074, 0.909091, 0.942815]), (0.0, [0.135335, 1.0, 1.648721])]
)  # fmt: skip
def test_the_sheet_s_example(gamma, weights):
    logp, A = torch.tensor([[-2.0, 0.0, 0.5]]), torch.tensor([[1.0, 1.0, -2.0]])
    loss = herl(logp, torch.zeros(1, 3), A, torch.ones(1, 3).bool(), gamma=gamma)
    assert loss[0].tolist() == pytest.approx([-weights[0], -weights[1], 2 * weights[2]], abs=1e-6)


@given(st.floats(-6, 6), st.floats(0.01, 5), st.floats(-3, 3))
def test_the_gradient_is_gamma_rho_over_the_square(log_ratio, gamma, advantage):
    logp = torch.tensor([[log_ratio]], dtype=torch.float64, requires_grad=True)
    herl(logp, torch.zeros(1, 1), torch.full((1, 1), advantage), torch.ones(1, 1).bool(), gamma=gamma).sum().backward()
    rho = torch.tensor(log_ratio, dtype=torch.float64).exp().item()
    assert logp.grad.item() == pytest.approx(-advantage * gamma * rho / (rho + gamma) ** 2, rel=1e-6, abs=1e-12)


def test_rollouts_beside_a_rewrite_are_clipped():
    logp = torch.tensor([[0.5, 0.5, 2.0], [0.5, 0.5, 2.0]])
    A, forced = torch.tensor([[1.0, 1.0, -1.0]] * 2), torch.tensor([[False] * 3, [True] * 3])
    loss = herl(logp, torch.zeros(2, 3), A, forced)
    torch.testing.assert_close(loss[:1], clip(logp[:1], torch.zeros(1, 3), A[:1], dual=3.0))
    assert loss[0].tolist() == pytest.approx([-1.2, -1.2, 3.0])
    assert loss[1, 2].item() == pytest.approx(2.71828**2 / (2.71828**2 + 0.1), rel=1e-4)
