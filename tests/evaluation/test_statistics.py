"""Intervals and comparisons against closed forms, another library's and a loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation import statistics


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=30), st.randoms(use_true_random=False)
)
def test_a_difference_pairs_by_place(pairs, random):
    first, second = zip(*pairs, strict=True)
    value, low, high = statistics.paired_difference(first, second)
    assert value == pytest.approx(np.mean(second) - np.mean(first), abs=1e-12)
    assert low <= value + 1e-9 and value <= high + 1e-9
    back, low_back, high_back = statistics.paired_difference(second, first)
    assert back == pytest.approx(-value, abs=1e-12)
    assert (low_back, high_back) == pytest.approx((-high, -low), abs=1e-9)


def test_a_constant_gain_is_not_certain():
    hard = [0.1, 0.9, 0.3, 0.5]
    value, low, high = statistics.paired_difference(hard, [x + 0.0625 for x in hard])
    assert value == pytest.approx(0.0625) and low < 0 and high > 0.125


def test_cells_of_one_question_and_of_none_that_varies():
    assert statistics.mean_cell([1.0]) == pytest.approx({"value": 1.0, "low": 0.2065, "high": 1.0, "n": 1}, abs=1e-3)
    one = statistics.count_cell([12.0])
    assert (one["low"], one["value"]) == (0.0, 12.0) and 30 < one["high"] < 40
    same = statistics.count_cell([12.0] * 250)
    assert 11.95 < same["low"] < 12 < same["high"] < 12.05
    lost = statistics.reward_cell([-1.0, -1.0, -0.5, -1.0])
    assert lost["low"] < -1 < lost["value"] < lost["high"]
    assert statistics.mean_cell([2.0, 3.0, 5.0])["high"] > 5, "numbers that are no shares"


def test_pass_at_1_is_the_mean_and_pass_at_k_needs_k():
    assert [statistics.pass_at_k(5, c, 1) for c in range(6)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    with pytest.raises(ValueError, match="needs at least 6 answers"):
        statistics.pass_at_k(5, 1, 6)


def test_a_partial_score_is_not_a_correct_answer():
    made = statistics.summarise([[0.5, 1.0], [0.99, 0.0]], [["a", "b"], ["c", "d"]], [[1, 1], [1, 3]])
    assert made["pass@1"]["value"] == 0.25 and made["pass@2"]["value"] == 0.5
    assert made["score"]["value"] == pytest.approx((0.75 + 0.495) / 2) and made["mean_length"]["value"] == 1.5
    assert set(made) == {"avg@2", "pass@1", "pass@2", "score", "mean_length"}


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 4)), min_size=1, max_size=12))
def test_the_cost_of_a_solution_counts_the_failures_too(problems):
    costs, solved = ([float(p[i]) for p in problems] for i in range(2))
    cell = statistics.cost_cell(costs, solved)
    if not sum(solved):
        assert cell is None
        return
    assert cell["value"] == pytest.approx(sum(costs) / sum(solved)) and cell["n"] == len(problems)
    assert 0 < cell["low"] < cell["value"] < cell["high"] < float("inf")
    dearer = statistics.cost_cell([2 * cost for cost in costs], solved)
    assert [dearer[k] for k in ("value", "low", "high")] == pytest.approx(
        [2 * cell[k] for k in ("value", "low", "high")]
    )


def test_the_cost_of_a_solution_is_not_certain_where_all_problems_are_alike():
    few, many = statistics.cost_cell([6.0] * 5, [2.0] * 5), statistics.cost_cell([6.0] * 500, [2.0] * 500)
    assert few["low"] < 2 < 3 < 4 < few["high"] and 2.9 < many["low"] < 3 < many["high"] < 3.1


def test_the_interval_of_a_cost_holds_the_truth():
    """Problems of very different difficulty, whose failures cost three times as much."""
    draw = np.random.default_rng(0)
    for problems, solved in ((10, 0.3), (40, 0.1), (200, 0.5)):
        held = []
        for _ in range(300):
            right = draw.random((problems, 4)) < draw.beta(solved, 1 - solved, (problems, 1))
            cost = draw.gamma(4, 25, (problems, 4)) * np.where(right, 1, 3)
            cell = statistics.cost_cell(cost.sum(1).tolist(), right.sum(1).tolist())
            truth = 100 * (solved + 3 * (1 - solved)) / solved
            held += [] if cell is None else [cell["low"] <= truth <= cell["high"]]
        assert np.mean(held) >= 0.9
