"""Cashed rewards: what they add up to, and the value of information of a player who knows Bayes' rule."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind


def cashed(values, earned, **settings):
    width = max(map(len, values))
    logp = torch.tensor([[math.log(v) for v in row] + [math.nan] * (width - len(row)) for row in values])
    columns = {"turn_reward": torch.tensor([row + [0.0] * (width - len(row)) for row in earned]), "answer_logp": logp}
    return bind("rlvr.shaping", {"kind": "reward_cashing", **settings})(columns)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.floats(-1, 1), st.floats(0.1, 2))
def test_a_row_gets_its_reward_less_what_was_known_at_first(values, outcome, weight):
    earned = [0.0] * (len(values) - 1) + [outcome]
    [row] = cashed([values], [earned], weight=weight).tolist()
    assert sum(row) == pytest.approx(outcome - weight * values[0], abs=1e-5)
    assert row[-1] == pytest.approx(outcome - weight * values[-1], abs=1e-5), (
        "the last turn gets what was not predicted"
    )


def test_discount_and_weight_by_hand():
    [row] = cashed([[0.2, 0.8]], [[0.0, 1.0]], weight=2.0, discount=0.5).tolist()
    assert row == pytest.approx([2 * (0.5 * 0.8 - 0.2), 1 - 2 * 0.8])


def test_without_a_gold_answer_nothing_changes():
    shaped = bind("rlvr.shaping", "reward_cashing")(
        {"turn_reward": torch.tensor([[0.5, 1.0]]), "answer_logp": torch.full((1, 2), math.nan)}
    )
    assert shaped.tolist() == [[0.5, 1.0]]


@pytest.mark.parametrize(("most", "guess"), [(9, 5), (9, 1), (4, 2), (1, 1)])
def test_a_bayesian_s_mean_gain_is_the_value_of_information(most, guess):
    """A number from 1 to n is below, at or above a guess: the best answer is right with 1 / n before, 1 / (size of its part) after."""
    parts = [[x for x in range(1, most + 1) if (x > guess) - (x < guess) == side] for side in (-1, 0, 1)]
    of = {x: part for part in parts for x in part}
    gains = [cashed([[1 / most, 1 / len(of[x])]], [[0.0, 0.0]])[0, 0].item() for x in of]
    best_after = sum(len(part) / most * (1 / len(part)) for part in parts if part)
    assert sum(gains) / most == pytest.approx(best_after - 1 / most, abs=1e-6)
    assert min(gains) >= -1e-7, "such an answer rules numbers out, never in"
