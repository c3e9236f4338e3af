"""What is measured about a judge."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation import judging

VALUES = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30)


@given(VALUES)
def test_separation_counts_pairs(pairs):
    values, correct = [v for v, _ in pairs], [c for _, c in pairs]
    good, bad = [v for v, c in pairs if c], [v for v, c in pairs if not c]
    result = judging.separation(values, correct)
    if not good or not bad:
        assert math.isnan(result)
        return
    wins = sum((g > b) + (g == b) / 2 for g in good for b in bad)
    assert result == pytest.approx(wins / len(good) / len(bad))


def test_the_interval_of_a_separation_holds_the_truth_and_is_never_certain():
    draw = np.random.default_rng(0)
    for count in (8, 40):
        held = []
        for _ in range(400):
            values = [*draw.normal(1, 1, count), *draw.normal(0, 1, 2 * count)]
            low, high = judging.separation_interval(values, [True] * count + [False] * 2 * count)
            held.append(low <= 0.7602 <= high)
        assert np.mean(held) >= 0.93
    low, high = judging.separation_interval([1.0] * 5 + [0.0] * 20, [True] * 5 + [False] * 20)
    assert low < 0.6 and high == 1


def test_a_card():
    correct = [True, True, False, False, False, True]
    rewards = [1.0, 0.4, 0.0, 0.6, None, 1.0]
    body = judging.measure(rewards, correct, [10, 20, 10, 200, 5, 10], [(0.0, 1.0), (0.6, 0.6), (None, 1.0)])
    assert body["rows"] == 6 and body["unread_share"] == pytest.approx(1 / 6)
    assert body["accuracy"] == pytest.approx(3 / 5), "0.4 for a correct one and 0.6 for an incorrect one are wrong"
    assert body["separation"] == pytest.approx(5 / 6) and body["separation_low"] <= 5 / 6 <= body["separation_high"]
    assert body["mean_correct"] == pytest.approx(0.8) and body["mean_incorrect"] == pytest.approx(0.3)
    assert body["length_correlation_incorrect"] == pytest.approx(1.0)
    assert body["length_correlation_correct"] == pytest.approx(-1.0)
    assert (body["injected"], body["injection_gain"], body["injection_raised_share"]) == (2, 0.5, 0.5)


def test_a_judge_that_reads_nothing_has_a_card():
    body = judging.measure([None, None], [True, False], [1, 2], [])
    assert body["unread_share"] == 1 and math.isnan(body["separation"]) and math.isnan(body["injection_gain"])
