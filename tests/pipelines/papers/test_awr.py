"""Weights of advantage-weighted regression: by hand, their order and bound, and the policy that they lead to."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.papers.awr import awr

REWARDS = st.lists(st.floats(-3, 3), min_size=2, max_size=6)


def weights(rewards, groups=None, scored=None, **settings):
    rows = torch.tensor(rewards)
    group = torch.tensor(groups or [0] * len(rewards))
    return awr(rows, group, torch.tensor(scored or [True] * len(rewards)), **settings).tolist()


def test_by_hand():
    """Means 1 and 5: exp of the difference over the temperature, at most 3; what is unscored has no weight and no say."""
    made = weights([2.0, 0.0, 9.0, 5.0], [0, 0, 0, 1], [True, True, False, True], temperature=2.0, most=3.0)
    assert made == pytest.approx([math.exp(0.5), math.exp(-0.5), 0.0, 1.0])
    assert weights([100.0, -100.0], most=20.0, temperature=0.01) == [20.0, 0.0]


@given(REWARDS, st.floats(0.05, 5))
def test_better_rows_weigh_no_less_and_none_more_than_the_bound(rewards, temperature):
    made = weights(rewards, temperature=temperature, most=4.0)
    ordered = [w for _, w in sorted(zip(rewards, made, strict=True))]
    assert ordered == sorted(ordered) and ordered[0] >= 0 and ordered[-1] <= 4
    shifted = weights([r + 1 for r in rewards], temperature=temperature, most=4.0)
    assert shifted == pytest.approx(made, rel=1e-3, abs=1e-5), "a constant of the problem does not matter"


@given(REWARDS, st.floats(0.3, 3))
def test_imitating_by_weight_is_the_policy_with_the_most_reward_under_a_kl(rewards, temperature):
    """Rows that were drawn alike often: weighted cross-entropy is least at their share of the weights, softmax(reward / temperature)."""
    made = torch.tensor(weights(rewards, temperature=temperature, most=1e6), dtype=torch.float64)
    wanted = torch.softmax(torch.tensor(rewards, dtype=torch.float64) / temperature, 0)
    torch.testing.assert_close(made / made.sum(), wanted, rtol=1e-4, atol=1e-7)
