"""Paired comparisons against exact enumerations, another library's and simulations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluation import paired
from pipelines.base import intervals

shares = st.lists(st.sampled_from([0.004, 0.009, 0.012, 0.017, 0.024, 0.03, 0.04, 0.06, 0.5]), min_size=1, max_size=8)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4), min_size=1, max_size=6))
def test_pass_at_k_is_the_mean_over_all_choices_of_answers(answers):
    brute = [
        [np.mean([max(chosen) >= 1 for chosen in itertools.combinations(row, k)]) for k in (1, 2, 4)] for row in answers
    ]
    assert paired.passes(answers, [1, 2, 4]) == pytest.approx(np.array(brute))


@given(shares, st.floats(0.01, 0.2))
def test_holm_rejects_what_the_step_down_procedure_rejects(p, alpha):
    rejected, order = set(), sorted(range(len(p)), key=p.__getitem__)
    for rank, i in enumerate(order):
        if p[i] * (len(p) - rank) > alpha:
            break
        rejected.add(i)
    assert {i for i, adjusted in enumerate(paired.holm(p)) if adjusted <= alpha} == rejected


def test_holm_adjusts_never_down_and_never_past_one():
    assert paired.holm([0.5, 0.9, 0.02]) == pytest.approx([1.0, 1.0, 0.06])
    assert paired.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06]), "Bonferroni would give 0.12 and 0.09"
    assert paired.holm([]) == []


def drawn(seed: int, problems: int = 60, answers: int = 4, gain: float = 0.0):
    """Shares of two models whose problems' pass rates differ by `gain` on average."""
    draw = np.random.default_rng(seed)
    rate = draw.beta(0.6, 0.8, problems)
    new = np.clip(rate + gain * 2 * draw.random(problems), 0, 1)
    return draw.binomial(answers, rate) / answers, draw.binomial(answers, new) / answers, float((new - rate).mean())


def test_the_detectable_difference_is_noticed_four_times_of_five():
    """One answer a problem, a tenth discordant: simulate a model that is exactly that much better."""
    draw = np.random.default_rng(0)
    n, discordant = 600, 0.2
    pilot = draw.choice([-1.0, 0.0, 1.0], p=[discordant / 2, 1 - discordant, discordant / 2], size=n)
    gain = paired.compare(np.zeros(n), pilot).detectable
    chance = [(discordant - gain) / 2, 1 - discordant, (discordant + gain) / 2]
    counts = draw.multinomial(n, chance, size=1000)
    rows = np.stack([np.repeat([-1.0, 0.0, 1.0], each) for each in counts])
    assert 0.72 <= np.mean(intervals.p_value(rows) <= 0.05) <= 0.86


def test_counts_and_value_are_those_of_the_problems():
    old, new = np.array([1.0, 0, 0, 0, 0, 0, 1]), np.array([0.0, 1, 1, 1, 1, 1, 1])
    result = paired.compare(old, new)
    assert (result.better, result.worse, result.n) == (5, 1, 7)
    assert result.p == pytest.approx(2 * stats.norm.sf(4 / 9**0.5))
    assert result.value == pytest.approx(4 / 7) and -1 <= result.low < result.value < result.high <= 1


def test_different_problems_are_refused():
    with pytest.raises(ValueError, match="3 and 4 problems"):
        paired.compare(np.ones(3), np.ones(4))


def test_the_order_of_problems_means_nothing_and_the_order_of_models_only_the_sign():
    old, new, _ = drawn(3, gain=0.05)
    one = paired.compare(old, new)
    shuffled = np.random.default_rng(1).permutation(len(old))
    other = paired.compare(old[shuffled], new[shuffled])
    back = paired.compare(new, old)
    assert other.value == pytest.approx(one.value) and other.p == pytest.approx(one.p, rel=1e-9)
    assert back.value == pytest.approx(-one.value) and back.p == pytest.approx(one.p, rel=1e-9)
    assert (back.low, back.high) == pytest.approx((-one.high, -one.low))


def test_seeds_speak_of_the_method():
    result = paired.over_seeds([0.5, 0.52, 0.48], [0.6, 0.61, 0.62])
    theirs = stats.ttest_ind([0.6, 0.61, 0.62], [0.5, 0.52, 0.48], equal_var=False)
    assert result["p"] == pytest.approx(theirs.pvalue)
    assert (result["low"], result["high"]) == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    assert paired.over_seeds([0.5], [0.6, 0.7]) is None and paired.over_seeds([0.5, 0.5], [0.6, 0.6]) is None


def test_lost_problems_are_counted_and_chance_is_told_apart():
    before, after = [[1, 0], [1, 1], [0, 0], [1, 1]], [[0, 0], [0, 0], [1, 0], [1, 0]]
    counts = paired.lost(before, after)
    assert (counts["solved"], counts["lost"], counts["gained"], counts["places"]) == (3, 2, 1, [1, 0])
    draw = np.random.default_rng(0)
    rate = draw.beta(0.5, 0.5, 4000)
    one, two = (draw.random((4000, 8)) < rate[:, None] for _ in range(2))
    unchanged = paired.lost(one.tolist(), two.tolist())
    assert unchanged["expected"] == pytest.approx(unchanged["lost"], rel=0.15)
