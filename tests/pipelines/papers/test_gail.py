"""The rewards of adversarial imitation against the released formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind

LOGITS = st.floats(-12, 12)


def paid(logit, reward=0.0, **settings):
    columns = {"demonstration_logit": torch.tensor([logit]), "reward": torch.tensor([reward])}
    return float(bind("rlvr.shaping", {"kind": "gail", **settings})(columns))


@given(LOGITS)
def test_the_released_rewards(logit):
    share = 1 / (1 + math.exp(-logit))
    minimax = -math.log(1 - share + 1e-8)
    assert paid(logit) == pytest.approx(minimax, abs=1e-5)
    assert paid(logit, form="log_odds") == pytest.approx(minimax + math.log(share), abs=1e-5)


@given(LOGITS, st.floats(0, 3), st.floats(0, 3))
def test_the_verifier_decides_nothing_unless_it_is_given_a_weight(logit, weight, reward):
    assert paid(logit, reward) == paid(logit)
    assert paid(logit, reward, weight=weight, verifier_weight=2.0) == pytest.approx(
        weight * paid(logit) + 2 * reward, abs=1e-4
    )


def test_certainty_is_paid_a_finite_reward():
    assert paid(1e6) == pytest.approx(18.420681) and paid(-1e6) == pytest.approx(0, abs=1e-7)
    assert paid(1e6, form="log_odds") == pytest.approx(18.420681)
