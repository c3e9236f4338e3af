"""DPG: importance weights towards the posterior, with a baseline."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.papers.dpg import dpg

START, REWARD, BETA = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.0, 1.0, 1.0]), 0.5
ROW = torch.ones(3).bool()
POSTERIOR = START * (REWARD / BETA).exp()


def of(method, q, reward=REWARD, scored=ROW):
    return method(reward, START.log()[:, None], q.log()[:, None], scored[:, None], scored)


def test_the_sheet_s_weights_and_posterior():
    assert POSTERIOR.sum().item() == pytest.approx(4.194528, abs=1e-6)
    method = dpg(memory=0.0)
    made = of(method, torch.tensor([0.4, 0.35, 0.25]))
    w = torch.tensor([1.25, 6.333477, 5.911245])
    torch.testing.assert_close(made, w / w.mean() - 1, atol=1e-5, rtol=0)
    assert math.exp(method.log_z) == pytest.approx(w.mean().item(), rel=1e-5)


def test_at_the_posterior_there_is_nothing_to_gain():
    made = of(dpg(), POSTERIOR / POSTERIOR.sum())
    torch.testing.assert_close(made, torch.zeros(3), atol=1e-5, rtol=0)


@given(st.floats(-3, 3))
def test_a_constant_in_the_reward_changes_nothing(shift):
    q = torch.tensor([0.4, 0.35, 0.25])
    torch.testing.assert_close(of(dpg(), q), of(dpg(), q, REWARD + shift), atol=1e-4, rtol=1e-4)


def test_the_expected_gradient_is_that_of_the_forward_divergence():
    """sum_x q A grad log q = -grad KL(posterior || q), with the exact normaliser."""
    logits = torch.tensor([0.3, -0.2, 0.1], requires_grad=True)
    q = logits.softmax(0)
    method = dpg(memory=1 - 1e-12, smallest_sample=1.0)
    method.log_z = math.log(POSTERIOR.sum())
    advantage = of(method, q.detach())
    (ours,) = torch.autograd.grad((q.detach() * advantage * q.log()).sum(), logits, retain_graph=True)
    target = POSTERIOR / POSTERIOR.sum()
    (exact,) = torch.autograd.grad((target * (target.log() - q.log())).sum(), logits)
    torch.testing.assert_close(ours, -exact, atol=1e-5, rtol=0)


def test_the_normaliser_moves_slowly_and_one_heavy_row_is_not_believed():
    method = dpg(memory=0.9)
    q = torch.tensor([0.4, 0.35, 0.25])
    first = of(method, q)
    z = math.exp(method.log_z)
    of(method, q, REWARD + 1)
    assert math.exp(method.log_z) == pytest.approx(0.9 * z + 0.1 * z * math.exp(2), rel=1e-5)
    assert first.abs().max() > 0
    assert (of(dpg(), q, torch.tensor([0.0, 0.0, 50.0])) == 0).all()


def test_unscored_rows_and_large_weights():
    scored = torch.tensor([True, True, False])
    made = of(dpg(smallest_sample=1.0, bound=0.1), torch.tensor([0.4, 0.35, 0.25]), REWARD, scored)
    assert made[2] == 0 and made.max().item() == pytest.approx(0.1)
    assert (of(dpg(), START, REWARD, torch.zeros(3).bool()) == 0).all()


def test_tokens_that_are_not_trained_do_not_weigh():
    old, mask = torch.tensor([[-1.0, -9.0], [-2.0, -9.0]]), torch.tensor([[True, False], [True, False]])
    row = torch.ones(2).bool()
    made = dpg(smallest_sample=1.0)(torch.zeros(2), torch.tensor([[-1.0, -3.0], [-1.0, -5.0]]), old, mask, row)
    w = torch.tensor([1.0, math.e])
    torch.testing.assert_close(made, w / w.mean() - 1, atol=1e-5, rtol=0)
