"""The rewards of internally rewarded RL: the released code's four, and the effect of a wrong discriminator on each."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind

SHARES = st.floats(0.001, 0.999)


def paid(q, p, reward=0.0, **settings):
    columns = {
        "target_probability": torch.tensor([q]),
        "target_prior": torch.tensor([p]),
        "reward": torch.tensor([reward]),
    }
    return float(bind("rlvr.shaping", {"kind": "irrl", **settings})(columns))


@pytest.mark.parametrize(
    ("q", "linear", "linear_unclipped", "log", "log_unclipped"),
    [
        (0.9, 0.8, 0.8, math.log(9), math.log(9)),
        (0.1, 0.0, 0.0, 0.0, 0.0),
        (0.05, 0.0, -0.05, 0.0, math.log(0.5)),
        (0.001, 0.0, -0.099, 0.0, math.log(0.01)),
    ],
)
def test_the_released_rewards_with_ten_targets(q, linear, linear_unclipped, log, log_unclipped):
    wanted = {
        ("linear", True): linear,
        ("linear", False): linear_unclipped,
        ("log", True): log,
        ("log", False): log_unclipped,
    }
    for (form, clip), value in wanted.items():
        assert paid(q, 0.1, form=form, clip=clip) == pytest.approx(value, abs=1e-6)


def test_a_discriminator_that_is_sure_of_another_target_charges_a_finite_amount():
    """log 0 is no reward: the probability is taken for the least that float32 holds in full."""
    least = math.log(torch.finfo(torch.float32).tiny)
    assert paid(0.0, 0.1, form="log", clip=False) == pytest.approx(least - math.log(0.1), rel=1e-6)
    assert paid(0.0, 0.1, 1.0, form="log", clip=False, weight=0.0, verifier_weight=1.0) == 1.0
    assert paid(0.0, 0.1, form="log") == 0.0


@given(SHARES, SHARES, st.floats(-0.0005, 0.0005))
def test_a_discriminator_that_is_off_by_little_changes_the_linear_reward_by_no_more(q, p, error):
    """The log reward of a rare target moves by the error divided by q."""
    assert abs(paid(q + error, p) - paid(q, p)) <= abs(error) + 1e-6
    assert abs(paid(0.001 + 0.0005, p, form="log", clip=False) - paid(0.001, p, form="log", clip=False)) > 0.4


@given(SHARES, SHARES, st.floats(0, 3), st.floats(0, 3))
def test_the_verifier_decides_nothing_unless_it_is_given_a_weight(q, p, weight, reward):
    assert paid(q, p, reward) == paid(q, p, 0.0)
    assert paid(q, p, reward, weight=weight, verifier_weight=2.0) == pytest.approx(
        weight * paid(q, p) + 2 * reward, abs=1e-4
    )
