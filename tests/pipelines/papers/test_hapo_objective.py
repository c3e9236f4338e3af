"""HAPO's statistics and boundaries, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pipelines.contract.catalogue import bind
from pipelines.contract.sampling import Sampling


def hapo(**settings):
    return bind("rlvr.objective", {"kind": "hapo", **settings}).fn


def batch(*entropies):
    values = torch.tensor([entropies or [0.0]])
    return {"mask": values > 0, "in_loss": torch.ones(1).bool(), "entropy_old": values}


def test_the_temperature_adapts_once_there_are_statistics_and_with_tau_alone():
    part, plain = hapo(tau=0.05), hapo(tau=0.0)
    assert part.sampling(Sampling()).adaptive is None
    for other in (part, plain):
        other.on_batch(batch(0.1, 0.2, 0.8))
    assert part.sampling(Sampling()).adaptive.tau == 0.05 and plain.sampling(Sampling()).adaptive is None


def test_a_step_without_tokens_leaves_the_statistics_and_one_token_has_no_spread():
    part = hapo()
    part.on_batch(batch(0.1, 0.2, 0.8))
    before = part.state_dict()
    part.on_batch(batch())
    assert part.state_dict() == before and before["bottom"] > 0
    part.on_batch(batch(2.0))
    assert part.state_dict() == {"pivot": pytest.approx(math.log(2)), "top": 0.0, "bottom": 0.0}
    assert part.sampling(Sampling()).adaptive is None


@pytest.mark.parametrize(
    ("score", "rho", "factor"),
    [
        (-0.5, 0.8125, 0.5),  # low = 0.25 * 1.5, half of it below 1: just inside, damped
        (-0.5, 0.8124, 1.0),
        (-0.5, 1.125, 0.5),
        (-0.5, 1.1251, 1.0),
        (0.5, 1.1875, 1.0),  # high = 0.25 * 1.5: just inside, not boosted
        (0.5, 1.1876, 1.5),
        (0.5, 0.875, 1.0),
        (0.5, 0.8749, 1.5),
    ],
)
def test_half_the_bounds_are_inside(score, rho, factor):
    part = hapo(low=0.25, high=0.25)
    made = part.shared_out(torch.ones(1, 1), torch.tensor([[rho]]), torch.tensor([[score]]))
    assert made.item() == pytest.approx(factor)
