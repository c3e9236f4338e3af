"""The ranking of methods: right in clear cases, honest in the others."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.ranking import rank


def simulated(generator, gains, *, seeds=4, problems=120, answers=4, spread=0.0):
    """Scores of methods that differ by `gains` on problems of very different difficulty."""
    difficulty = generator.beta(0.6, 0.6, problems)
    scores = {}
    for name, gain in gains.items():
        chance = np.clip(difficulty + gain + spread * generator.standard_normal((seeds, 1)), 0, 1)
        scores[name] = (generator.binomial(answers, chance) / answers).tolist()
    return difficulty, scores


def test_the_order_is_that_of_the_means_and_a_clear_winner_is_sure():
    _, scores = simulated(np.random.default_rng(0), {"a": 0.0, "b": 0.25, "c": -0.1})
    standings = rank(scores)
    assert [s.name for s in standings] == ["b", "a", "c"]
    first, _, last = standings
    assert (
        first.best == 1.0 and (first.rank_low, first.rank_high) == (1, 1) and (last.rank_low, last.rank_high) == (3, 3)
    )
    assert first.mean == pytest.approx(np.mean(scores["b"])) and len(first.by_seed) == 4 and first.gain is None
    assert first.low < first.mean < first.high


def test_equal_methods_share_the_first_place():
    scores = [[0.0, 1.0, 0.5]]
    standings = rank({"a": scores, "b": scores})
    assert [s.best for s in standings] == [0.5, 0.5]
    assert all((s.rank_low, s.rank_high) == (1, 2) for s in standings), "either may be the better one"


def test_the_best_of_equals_is_not_believed():
    """Of eight methods without a difference one is always on top: its chance of being best must not look like a finding."""
    generator = np.random.default_rng(1)
    tops, wide = [], 0
    for _ in range(30):
        _, scores = simulated(generator, dict.fromkeys("abcdefgh", 0.0), seeds=3, spread=0.03)
        top = rank(scores, resamples=300)[0]
        tops.append(top.best)
        wide += top.rank_high >= 3
    assert np.mean(tops) < 0.75 and wide >= 20


def test_a_gain_is_paired_with_the_problems_and_covered():
    """The interval of the gain over the baseline covers the truth about as often as it says."""
    generator = np.random.default_rng(2)
    covered = narrower = 0
    for _ in range(60):
        difficulty, scores = simulated(generator, {"a": 0.1}, seeds=6, problems=200, spread=0.01)
        truth = float(np.mean(np.clip(difficulty + 0.1, 0, 1) - difficulty))
        (standing,) = rank(scores, difficulty.tolist(), resamples=400)
        covered += standing.gain_low <= truth <= standing.gain_high
        narrower += standing.gain_high - standing.gain_low < standing.high - standing.low
    assert covered >= 51 and narrower == 60


def test_seeds_are_resampled():
    """Two seeds far apart make an interval that reaches to both."""
    (standing,) = rank({"a": [[0.0] * 50, [1.0] * 50]})
    assert [standing.low, standing.high, *standing.by_seed] == pytest.approx([0.0, 1.0, 0.0, 1.0])


@pytest.mark.parametrize("scores", [{}, {"a": [[1.0, 0.0]], "b": [[1.0]]}, {"a": [[]]}])
def test_a_ranking_without_common_problems_is_refused(scores):
    with pytest.raises(ValueError, match="the same problems"):
        rank(scores)


def test_a_baseline_of_other_problems_is_refused():
    with pytest.raises(ValueError, match="the same problems"):
        rank({"a": [[1.0, 0.0]]}, [1.0])
