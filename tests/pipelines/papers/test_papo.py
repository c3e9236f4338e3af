"""PAPO: what it pays, what it bounds, and where no gradient flows."""

from __future__ import annotations

import pytest
import torch

from pipelines.papers.papo import papo

LOGP, MASKED = torch.tensor([[-0.2, -1.0, -0.5]]), torch.tensor([[-1.2, -1.1, -0.5]])


def test_the_sheet_s_loss_with_both_entropies():
    """Of the double entropy loss the masked half is a constant: 0.03 times the mean of -logp_masked."""
    ours = 0.02 * papo(LOGP, MASKED, entropy=0.03 / 0.02).mean() + 0.03 * -MASKED.mean()
    assert ours.item() == pytest.approx(0.042515, abs=1e-6)


def test_nothing_is_paid_where_the_context_makes_no_difference():
    logp = LOGP.clone().requires_grad_()
    made = papo(logp, LOGP)
    made.sum().backward()
    assert (made == 0).all() and (logp.grad == 0).all()


def test_rows_without_a_context_are_left_alone():
    logp = LOGP.clone().requires_grad_()
    made = papo(logp, torch.full((1, 3), torch.nan), entropy=1.0)
    made.sum().backward()
    assert (made == 0).all() and (logp.grad == 0).all()


def test_the_gradient_makes_the_token_depend_more_on_its_context():
    """d/dlogp of -k3 is expm1(d): a token that the context makes likelier is pushed up, until masking hardly matters."""
    logp = LOGP.clone().requires_grad_()
    papo(logp, MASKED).sum().backward()
    torch.testing.assert_close(logp.grad, torch.expm1(MASKED - LOGP))
    assert (logp.grad[0, :2] < 0).all()


def test_a_token_that_masking_makes_likelier_is_bounded():
    logp = torch.tensor([[-9.0]]).requires_grad_()
    made = papo(logp, torch.tensor([[-0.1]]), bound=0.2)
    made.sum().backward()
    assert made.item() == pytest.approx(-0.2) and logp.grad.item() == 0
