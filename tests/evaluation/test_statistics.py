"""Intervals and comparisons against closed forms, another library's and a loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluation import statistics


@given(st.integers(1, 300), st.floats(0.5, 0.99), st.data())
def test_wilson_is_scipy_s(n, confidence, data):
    count = data.draw(st.integers(0, n))
    ours = statistics.wilson(count, n, confidence)
    theirs = stats.binomtest(count, n).proportion_ci(confidence, method="wilson")
    assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_values_do_not_claim_certainty(value):
    low, high = statistics.interval([value] * 20)
    assert (low, high) == pytest.approx(statistics.wilson(20 * value, 20)) and high - low > 0.1


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_a_bootstrap_of_many_is_nearly_normal(confidence):
    """Both tails: the half widths are z standard errors, and each side lies as far from the mean as the other."""
    values = np.random.default_rng(0).random(2000)
    low, high = statistics.interval(values.tolist(), confidence=confidence, resamples=4000)
    half = stats.norm.ppf(0.5 + confidence / 2) * values.std() / 2000**0.5
    assert values.mean() - low == pytest.approx(half, rel=0.1)
    assert high - values.mean() == pytest.approx(half, rel=0.1)


def test_resampling_is_by_problem_and_repeatable():
    values = np.random.default_rng(1).random(50).tolist()
    assert statistics.interval(values, seed=4) == statistics.interval(values, seed=4)
    assert statistics.interval(values, seed=4) != statistics.interval(values, seed=5)
    few = statistics.interval(values[:10])
    assert few[1] - few[0] > statistics.interval(values)[1] - statistics.interval(values)[0]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=30), st.randoms(use_true_random=False)
)
def test_a_difference_pairs_by_place(pairs, random):
    first, second = zip(*pairs, strict=True)
    value, low, high = statistics.paired_difference(first, second, resamples=200)
    assert value == pytest.approx(np.mean(second) - np.mean(first), abs=1e-12)
    assert low <= value + 1e-9 and value <= high + 1e-9
    back, low_back, high_back = statistics.paired_difference(second, first, resamples=200)
    assert back == pytest.approx(-value, abs=1e-12)
    assert (low_back, high_back) == pytest.approx((-high, -low), abs=0.2)


def test_a_constant_gain_is_certain_however_hard_the_problems_are():
    hard = [0.1, 0.9, 0.3, 0.5]
    assert statistics.paired_difference(hard, [x + 0.0625 for x in hard]) == pytest.approx((0.0625,) * 3)


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
    cell = statistics.cost_cell(costs, solved, resamples=300)
    if not sum(solved):
        assert cell is None
        return
    assert cell["value"] == pytest.approx(sum(costs) / sum(solved)) and cell["n"] == len(problems)
    assert min(costs) / 4 <= cell["low"] <= cell["high"] <= sum(costs) * len(costs)
    dearer = statistics.cost_cell([2 * cost for cost in costs], solved, resamples=300)
    assert [dearer[k] for k in ("value", "low", "high")] == pytest.approx(
        [2 * cell[k] for k in ("value", "low", "high")]
    )


def test_the_cost_of_a_solution_is_certain_where_all_problems_are_alike():
    assert statistics.cost_cell([6.0] * 5, [2.0] * 5) == {"value": 3.0, "low": 3.0, "high": 3.0, "n": 5}
    wide = statistics.cost_cell([10.0, 10.0, 10.0, 50.0], [1.0, 1.0, 1.0, 1.0])
    assert wide["low"] == 10.0 and 30 <= wide["high"] <= 50
