"""Losses of a step's ranks against sorting, and the running mean."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind
from pipelines.preference import coupled

SLOT = "preference.loss"


def aot(logp, logp_ref, paired):
    """Value and gradient of the step, pair by pair as the stage does it."""
    logp = logp.clone().requires_grad_()
    chosen, rejected = logp.unbind(1)
    columns = {
        "chosen_logp": chosen, "rejected_logp": rejected, "chosen_logp_ref": logp_ref[:, 0], "rejected_logp_ref": logp_ref[:, 1],
        **coupled.ranked(logp.detach(), logp_ref),
    }  # fmt: skip
    loss = bind(SLOT, {"kind": "aot", "paired": paired})(columns).sum()
    loss.backward()
    return loss.item(), logp.grad


def sorted_directly(logp, logp_ref, paired):
    logp = logp.clone().requires_grad_()
    if paired:
        x, y = logp[:, 0] - logp[:, 1], logp_ref[:, 0] - logp_ref[:, 1]
    else:
        x, y = (logp - logp_ref).unbind(1)
    loss = -torch.nn.functional.logsigmoid(0.1 * (x.sort().values - y.sort().values)).sum()
    loss.backward()
    return loss.item(), logp.grad


@pytest.mark.parametrize("paired", [True, False])
@given(st.integers(1, 7), st.integers(0, 1000))
def test_ranks_by_pair_are_the_sorted_samples(paired, count, seed):
    drawn = torch.Generator().manual_seed(seed)
    logp, logp_ref = (-20 * torch.rand(count, 2, generator=drawn, dtype=torch.float64) for _ in range(2))
    value, gradient = aot(logp, logp_ref, paired)
    expected, oracle = sorted_directly(logp, logp_ref, paired)
    assert value == pytest.approx(expected)
    torch.testing.assert_close(gradient, oracle)


def test_unpaired_answers_may_be_paired_otherwise():
    logp = torch.tensor([[-3.0, -9.0], [-5.0, -2.0], [-8.0, -7.0]])
    logp_ref = torch.tensor([[-4.0, -4.0], [-6.0, -5.0], [-2.0, -6.0]])
    order = [2, 0, 1]
    shuffled = [torch.stack([each[:, 0], each[order, 1]], 1) for each in (logp, logp_ref)]
    assert aot(*shuffled, paired=False)[0] == pytest.approx(aot(logp, logp_ref, False)[0])
    assert aot(*shuffled, paired=True)[0] != pytest.approx(aot(logp, logp_ref, True)[0], abs=1e-3)


def test_the_mean_is_of_all_answers_so_far():
    mean = coupled.RunningMean()
    assert mean.value == 0
    mean.take(torch.tensor([[1.0, 2.0]]))
    mean.take(torch.tensor([6.0]))
    again = coupled.RunningMean()
    again.load(mean.state())
    assert mean.value == again.value == 3
