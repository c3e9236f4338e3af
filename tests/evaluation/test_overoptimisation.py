"""The laws of over-optimisation: known coefficients come back, and best of n is what all subsets say."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.overoptimisation import Curve, best_of_n, best_of_n_curve, best_of_n_kl, fit, law
from evaluation.pages.overoptimisation import lines

SCORES = st.lists(st.tuples(st.integers(0, 4), st.floats(-3, 3)), min_size=1, max_size=7)


def curve(kind, alpha, beta, start=0.0, noise=0.0, points=40, seed=0):
    distance = np.linspace(0, 6, points)
    gold = start + law(kind, distance) @ [alpha, -beta] + noise * np.random.default_rng(seed).standard_normal(points)
    return Curve("c", kind, distance, gold, np.full(points, np.nan))


@pytest.mark.parametrize(("kind", "alpha", "beta"), [("best_of_n", 1.0, 0.25), ("rl", 1.0, 0.4), ("rl", 0.3, 0.2)])
def test_known_coefficients_come_back(kind, alpha, beta):
    exact = fit(curve(kind, alpha, beta, start=0.7))
    assert exact.alpha[0] == pytest.approx(alpha) and exact.beta[0] == pytest.approx(beta)
    assert exact.start == pytest.approx(0.7) and exact.error < 1e-9
    expected = (2.0, 1.0) if kind == "best_of_n" else (np.exp(alpha / beta - 1), beta * np.exp(alpha / beta - 1))
    assert exact.peak == pytest.approx((expected[0], expected[1] + 0.7))


@pytest.mark.parametrize("kind", ["best_of_n", "rl"])
def test_intervals_hold_the_truth_about_as_often_as_they_say(kind):
    for points in (4, 40):
        fits = [fit(curve(kind, 1.0, 0.3, noise=0.1, points=points, seed=seed)) for seed in range(400)]
        assert all(each.alpha[1] < each.alpha[0] < each.alpha[2] for each in fits)
        assert 0.92 <= np.mean([each.alpha[1] <= 1.0 <= each.alpha[2] for each in fits]) <= 0.98
        assert 0.92 <= np.mean([each.beta[1] <= 0.3 <= each.beta[2] for each in fits]) <= 0.98


@given(SCORES, st.data())
def test_best_of_n_is_the_mean_over_all_subsets(rows, data):
    """Ties of the proxy share their gold."""
    proxy, gold = zip(*rows, strict=True)
    n = data.draw(st.integers(1, len(rows)))
    told = []
    for subset in combinations(range(len(rows)), n):
        best = max(proxy[i] for i in subset)
        level = [gold[i] for i in range(len(rows)) if proxy[i] == best]
        told.append(sum(level) / len(level))
    assert best_of_n(proxy, gold, n) == pytest.approx(np.mean(told), abs=1e-9)


@given(SCORES)
def test_the_proxy_as_gold_never_falls(rows):
    proxy = [value for value, _ in rows]
    values = [best_of_n(proxy, proxy, n) for n in range(1, len(proxy) + 1)]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(values))
    assert values[0] == pytest.approx(np.mean(proxy)) and values[-1] == pytest.approx(max(proxy))


def test_n_beyond_the_completions_is_refused_and_many_completions_are_no_trouble():
    with pytest.raises(ValueError, match="best of 3 of 2"):
        best_of_n([1, 2], [1, 2], 3)
    many = np.random.default_rng(0).standard_normal(5000)
    assert best_of_n(many, many, 2000) == pytest.approx(np.sort(many)[-8:].mean(), abs=0.4)


def test_a_curve_of_problems_ends_at_the_best_of_all():
    draw = np.random.default_rng(0)
    problems = [(draw.standard_normal(16), draw.standard_normal(16)) for _ in range(30)]
    told = best_of_n_curve("bon", problems)
    assert told.distance[0] == 0 and told.distance[-1] == pytest.approx(best_of_n_kl(16) ** 0.5)
    assert told.proxy[-1] == pytest.approx(np.mean([proxy.max() for proxy, _ in problems]))
    assert told.gold[-1] == pytest.approx(np.mean([gold[proxy.argmax()] for proxy, gold in problems]))


def test_too_few_points_have_no_fit():
    assert fit(Curve("c", "rl", np.array([0.0, 1, 1, 2]), np.ones(4), np.ones(4))) is None
    assert fit(curve("rl", 1.0, -0.1)).peak is None, "a law that rises for ever has no peak"


def test_a_law_without_a_peak_says_which_way_it_goes():
    for alpha, way in ((1.0, "rises with"), (-0.3, "falls over")):
        bent = curve("rl", alpha, -0.05)
        assert f"the fitted gold {way} the distance" in "\n".join(lines([(bent, fit(bent))]))
