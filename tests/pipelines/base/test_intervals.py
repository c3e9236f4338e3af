"""The intervals and tests behind every printed one: what they must never say, closed forms, level and coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from evaluation import paired
from pipelines.base import intervals

differences = st.lists(st.integers(-8, 8), min_size=1, max_size=60).map(lambda counts: np.array(counts) / 8)


@given(differences, st.floats(0.5, 0.999))
def test_p_and_interval_never_contradict_each_other(difference, confidence):
    low, high = intervals.difference_interval(difference, confidence)
    p = intervals.p_value(difference)
    if abs(p - (1 - confidence)) > 1e-9:
        assert (p < 1 - confidence) == (low > 0 or high < 0)
    assert -1 <= low <= difference.mean() + 1e-12 and difference.mean() - 1e-12 <= high <= 1 and high - low > 0


@given(differences)
def test_the_order_of_models_means_the_sign_alone(difference):
    low, high = intervals.difference_interval(difference)
    assert intervals.difference_interval(-difference) == pytest.approx((-high, -low), abs=1e-12)
    assert intervals.p_value(-difference) == pytest.approx(intervals.p_value(difference))
    rows = np.stack([difference, -difference])
    assert intervals.difference_interval(rows)[0] == pytest.approx([low, -high], abs=1e-12)


def test_nothing_absurd_is_said_of_plain_cases():
    wins = paired.compare(np.zeros(250), np.array([1.0] * 249 + [0.0]))
    assert wins.p < 1e-50 and 0.96 < wins.low < wins.value < wins.high == 1
    worse = paired.compare(np.array([1.0] * 57 + [0.0] * 3), np.zeros(60))
    assert worse.p < 1e-10 and -1 <= worse.low < -0.99 and worse.high < -0.8
    one = paired.compare(np.tile([0.0, 1.0], 1000), np.append(np.tile([0.0, 1.0], 999), [1.0, 1.0]))
    assert one.p > 0.5 and -0.002 < one.low < 0 < one.value < one.high < 0.003
    equal = paired.compare(np.ones(250), np.ones(250))
    assert equal.p == 1 and -0.015 < equal.low < 0 < equal.high < 0.015 and equal.detectable < 0.03
    for problems in (5, 60, 1000):
        up = paired.compare(np.zeros(problems), np.ones(problems))
        assert up.low < up.high == up.value == 1 and (up.p < 0.05) == (problems > 5)
        assert (up.detectable > 1) == (problems == 5), "what would have shown is not less than what did not"
    alone = paired.compare(np.zeros(1), np.ones(1))
    assert (alone.low, alone.high) == (-1, 1) and alone.p > 0.5 and alone.detectable > 1
    assert paired.compare(np.zeros(8), np.full(8, 0.25)).low < 0.25 < paired.compare(np.zeros(8), np.full(8, 0.25)).high


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_few_discordant_pairs_are_judged_as_the_exact_test_does(better, worse, ties):
    """Where the exact p is well off 5 %, both are on the same side of it."""
    if better + worse == 0:
        return
    exact = stats.binomtest(better, better + worse).pvalue
    p = intervals.p_value(np.repeat([1.0, -1.0, 0.0], [better, worse, ties]))
    assert not (exact < 0.025 and p > 0.05) and not (exact > 0.065 and p < 0.05)


@pytest.mark.parametrize(("problems", "answers"), [(5, 1), (10, 8), (20, 1), (60, 8), (250, 1)])
def test_level_and_coverage(problems, answers):
    """Equal models, models with a difference, and losses of whole problems, at shares from near 0 to near 1."""
    draw = np.random.default_rng([problems, answers])
    shape = (2000, problems)
    for share in (0.01, 0.5, 0.95):
        rate = draw.beta(share, 1 - share, shape)
        other = draw.beta(share, 1 - share, shape)
        lost = np.where(draw.random(shape) < 0.05, 0.0, rate)
        for new, truth in (
            (rate, 0.0), (other, 0.0), (lost, -0.05 * share), (rate + 0.8 * (1 - rate), 0.8 * (1 - share)),
        ):  # fmt: skip
            difference = (draw.binomial(answers, new) - draw.binomial(answers, rate)) / answers
            low, high = intervals.difference_interval(difference)
            assert ((low <= truth + 1e-9) & (high >= truth - 1e-9)).mean() >= 0.925
            if not truth:
                assert (intervals.p_value(difference) < 0.05).mean() <= 0.065


def test_a_gain_is_noticed_about_as_often_as_a_t_test_notices_it():
    draw = np.random.default_rng(0)
    rate = draw.beta(0.5, 0.5, (2000, 250))
    new = rate + 0.1 * (1 - rate)
    difference = (draw.binomial(8, new) - draw.binomial(8, rate)) / 8
    student = stats.ttest_1samp(difference, 0, axis=1).pvalue < 0.05
    ours = intervals.p_value(difference) < 0.05
    assert ours.mean() > 0.8 and student.mean() - ours.mean() < 0.03


def test_the_detectable_difference_is_noticed_four_times_of_five_at_any_level():
    draw = np.random.default_rng(0)
    difference = draw.choice([-0.5, -0.25, 0.0, 0.25, 0.5], (3000, 120))
    for alpha in (0.05, 0.001):
        gain = float(intervals.detectable(difference[0], alpha))
        assert 0.7 <= (intervals.p_value(difference + gain) < alpha).mean() <= 0.9


@given(st.integers(1, 300), st.floats(0.5, 0.99), st.data())
def test_wilson_is_scipy_s_and_shares_of_one_answer_have_it(n, confidence, data):
    count = data.draw(st.integers(0, n))
    theirs = stats.binomtest(count, n).proportion_ci(confidence, method="wilson")
    assert intervals.wilson(count, n, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    verdicts = np.repeat([1.0, 0.0], [count, n - count])
    assert intervals.share_interval(verdicts, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60).map(lambda counts: np.array(counts) / 8))
def test_the_interval_of_shares_lies_inside_that_of_verdicts_and_around_the_mean(values):
    low, high = intervals.share_interval(values)
    widest = intervals.wilson(values.sum(), len(values))
    assert widest[0] - 1e-12 <= low <= values.mean() + 1e-12
    assert values.mean() - 1e-12 <= high <= widest[1] + 1e-12 and high > low


@pytest.mark.parametrize(("problems", "answers", "least"), [(10, 1, 0.86), (20, 8, 0.9), (60, 8, 0.93), (250, 1, 0.93)])
def test_the_interval_of_shares_holds_the_truth(problems, answers, least):
    draw = np.random.default_rng(problems)
    for share in (0.02, 0.5, 0.95):
        rows = draw.binomial(answers, draw.beta(share, 1 - share, (800, problems))) / answers
        ends = np.array([intervals.share_interval(row) for row in rows])
        assert ((ends[:, 0] <= share) & (share <= ends[:, 1])).mean() >= least


def test_lengths_of_few_problems_are_not_said_to_be_known():
    draw = np.random.default_rng(0)
    values = np.round(draw.lognormal(np.log(100), 0.3, (2000, 5)))
    ends = np.array([intervals.mean_interval(row, least=0.0) for row in values])
    truth = 100 * np.exp(0.3**2 / 2)
    assert ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean() >= 0.94
    many = draw.normal(50, 10, 4000)
    half = special.ndtri(0.975) * many.std() / 4000**0.5
    assert intervals.mean_interval(many) == pytest.approx((many.mean() - half, many.mean() + half), abs=0.01)
    low, high = intervals.mean_interval([12.0] * 20, least=0.0)
    assert 11.5 < low < 12 < high < 12.5, "equal lengths are not known to the digit"
