"""The gate's promises, by simulation of many nights: false promotions at most alpha, the stated power, guards that hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluation import gate
from evaluation.gate import Pair, Rule

NIGHTS = 30


def champions(sims: int, problems: int, answers: int, seed: int = 0):
    """Pass rates of the problems, and the champion's scores: [sims, problems]."""
    draw = np.random.default_rng(seed)
    rate = draw.beta(0.6, 0.8, (sims, problems))
    return draw, rate, draw.binomial(answers, rate) / answers


@pytest.mark.parametrize(("answers", "alpha"), [(4, 0.05), (1, 0.05), (4, 0.2)])
def test_equal_candidates_night_after_night_are_promoted_at_most_alpha(answers, alpha):
    """30 nights at one champion whose own luck is the same every night: the chance that any of them promotes."""
    draw, rate, old = champions(600, 120, answers)
    promoted = np.zeros(600, dtype=bool)
    for night in range(1, NIGHTS + 1):
        new = draw.binomial(answers, rate) / answers
        level = gate.level(night, alpha, NIGHTS)
        promoted |= gate.better(new - old) <= level
    assert promoted.mean() <= alpha, "half of alpha is all that the first 30 looks may spend"


def test_without_paying_for_looks_the_same_nights_would_promote_far_more():
    """The simulation can fail: at 5 % a night the family-wise error is several times 5 %."""
    draw, rate, old = champions(300, 120, 4)
    promoted = np.zeros(300, dtype=bool)
    for _night in range(NIGHTS):
        promoted |= gate.better(draw.binomial(4, rate) / 4 - old) <= 0.05
    assert promoted.mean() > 0.15


@pytest.mark.parametrize("look", [1, 31])
def test_a_known_gain_is_promoted_as_often_as_stated(look):
    """The gain that the evidence calls detectable with 80 % power, planted, is promoted in some 80 % of the trials."""
    problems, answers, level = 400, 8, gate.level(look, 0.05, NIGHTS)
    draw = np.random.default_rng(look)
    rate = np.tile(draw.beta(2, 2, problems), (500, 1))
    old = draw.binomial(answers, rate) / answers
    pair = Pair(old[0], draw.binomial(answers, rate[0]) / answers)
    gain = gate.decide(Rule("sums", {}), {"sums": pair}, look)["primary"]["detectable"]
    better = np.clip(rate + gain, 0, 1)
    new = draw.binomial(answers, better) / answers
    passed = (gate.better(new - old) <= level).mean()
    assert 0.7 <= passed <= 0.9


@pytest.mark.parametrize("level", [0.05, 0.005])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_candidate_worse_by_the_margin_passes_a_guard_at_most_at_the_level(level, sparse):
    draw, margin, problems = np.random.default_rng(0), 0.03, 250
    if sparse:  # nothing but whole losses, each rare: where a plain t test is fooled
        difference = -(draw.random((20_000, problems)) < margin).astype(float)
    else:
        rate = draw.beta(0.8, 0.8, (20_000, problems))
        worse = rate - margin / rate.mean() * rate
        difference = draw.binomial(4, worse) / 4 - draw.binomial(4, rate) / 4
    assert (gate.not_worse(difference, margin) <= level).mean() <= level * 1.25


def test_an_equal_candidate_passes_a_guard_at_the_margin_that_is_called_enough():
    draw = np.random.default_rng(1)
    rate = draw.beta(2, 2, (2000, 300))
    difference = (draw.binomial(4, rate) - draw.binomial(4, rate)) / 4
    pair = Pair(np.zeros(300), difference[0])
    level = gate.level(1, 0.05, NIGHTS)
    enough = gate.decide(Rule("a", {"b": 0.02}), {"a": pair, "b": pair}, 1)["guards"][0]["needed_margin"]
    assert 0.7 <= (gate.not_worse(difference, enough) <= level).mean() <= 0.9


@pytest.mark.parametrize("level", [0.05, 0.05 / 60])
def test_one_answer_each_keeps_every_level_whatever_is_discordant(level):
    """The chance of a promotion of an equal model, summed over all counts of wins: exact, no simulation."""
    for problems in (20, 60, 250):
        for discordant in (0.02, 0.1, 0.3, 0.6, 1.0):
            pairs = np.arange(problems + 1)
            chance = stats.binom.pmf(pairs, problems, discordant)
            promoted = 0.0
            for count, weight in zip(pairs, chance, strict=True):
                wins = np.arange(count + 1)
                rows = np.zeros((count + 1, problems))
                rows[:, :count] = np.where(np.arange(count) < wins[:, None], 1.0, -1.0)
                promoted += weight * stats.binom.pmf(wins, count, 0.5)[gate.better(rows) <= level].sum()
            assert promoted <= level * (1.15 if problems > 20 else 1.3)


def test_the_interval_of_the_primary_benchmark_goes_with_its_verdict():
    draw = np.random.default_rng(0)
    for gain in np.linspace(0, 0.3, 60):
        old = draw.binomial(4, 0.4, 80) / 4
        primary = gate.decide(Rule("a", {}), {"a": Pair(old, draw.binomial(4, 0.4 + gain, 80) / 4)}, 1)["primary"]
        assert primary["passed"] == (primary["low"] > 0) and primary["low"] < primary["value"] < primary["high"]


@given(st.integers(1, 500), st.floats(0.001, 0.2), st.integers(1, 60))
def test_levels_never_sum_past_alpha(count, alpha, looks):
    levels = [gate.level(n, alpha, looks) for n in range(1, count + 1)]
    assert sum(levels) <= alpha and levels == sorted(levels, reverse=True)


def test_a_promotion_needs_every_test():
    draw = np.random.default_rng(0)
    old = draw.binomial(8, draw.beta(2, 2, 400)) / 8
    gain, loss = Pair(old, np.clip(old + 0.2, 0, 1)), Pair(old, np.clip(old - 0.2, 0, 1))
    even = Pair(old, old + draw.choice([-0.125, 0.125], 400))
    rule = Rule("sums", {"words": 0.05})
    assert gate.decide(rule, {"sums": gain, "words": even}, 1)["promote"]
    guarded = gate.decide(rule, {"sums": gain, "words": loss}, 1)
    assert not guarded["promote"] and "is not shown to stay within 5 points" in guarded["why"][1]
    flat = gate.decide(rule, {"sums": even, "words": gain}, 1)
    assert not flat["promote"] and "would have passed with 80 % power" in flat["why"][0]


@pytest.mark.parametrize("answers", [1, 4])
def test_a_candidate_that_lost_the_margin_is_called_worse_in_at_most_alpha_of_many_months_of_nights(answers):
    """60 nights at one champion: the chance that any is called worse by more than what it has lost."""
    draw, rate, old = champions(800, 120, answers)
    margin, alpha = 0.03, 0.05
    lost = rate * (1 - margin / rate.mean(-1, keepdims=True))
    called, unpaid = np.zeros(800, dtype=bool), np.zeros(800, dtype=bool)
    for night in range(1, 2 * NIGHTS + 1):
        p = gate.worse(draw.binomial(answers, lost) / answers - old, margin)
        called |= p <= gate.level(night, alpha, NIGHTS)
        unpaid |= p <= alpha
    assert called.mean() <= alpha < 0.3 < unpaid.mean(), "the simulation can fail: without paying it does"


@pytest.mark.parametrize("level", [0.05, 0.05 / 120])
def test_rare_whole_losses_at_the_margin_are_called_worse_at_most_at_the_level(level):
    draw = np.random.default_rng(0)
    for problems in (20, 60, 250):
        difference = -(draw.random((40_000, problems)) < 0.02).astype(float)
        assert (gate.worse(difference, 0.02) <= level).mean() <= level


@given(
    st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=20, max_size=80),
    st.floats(0.005, 0.3),
    st.integers(1, 80),
)
def test_no_candidate_is_called_both_and_a_larger_loss_is_never_called_better(changes, margin, look):
    old = np.full(len(changes), 0.5)
    new = np.array(changes)
    pair, below = Pair(old * 0, new), Pair(old * 0, new - 0.3)
    assert gate.worse(new, margin) + gate.not_worse(new, margin) == pytest.approx(1)
    first, second = (gate.hold({"a": margin}, {"a": each}, look, 0.05, 30) for each in (pair, below))
    (test,) = first["tests"]
    assert not (test["worse"] and test["passed"]) and (first["verdict"] == "worse") == test["worse"]
    if test["worse"]:
        assert second["verdict"] == "worse"


def test_one_benchmark_is_enough_to_be_worse_and_all_are_needed_to_be_not_worse():
    draw = np.random.default_rng(0)
    old = draw.binomial(8, draw.beta(2, 2, 400)) / 8
    loss, gain = Pair(old, np.clip(old - 0.2, 0, 1)), Pair(old, np.clip(old + 0.2, 0, 1))
    margins = {"a": 0.02, "b": 0.02}
    assert gate.hold(margins, {"a": gain, "b": loss}, 1, 0.05, 30)["verdict"] == "worse"
    assert gate.hold(margins, {"a": gain, "b": gain}, 1, 0.05, 30)["verdict"] == "not worse"
    assert gate.hold(margins, {"a": gain}, 1, 0.05, 30)["verdict"] == "undecided", (
        "a benchmark that is missing decides nothing"
    )
    assert gate.hold(margins, {"a": gain}, 1, 0.05, 30)["level"] == gate.level(1, 0.05, 30) / 2
