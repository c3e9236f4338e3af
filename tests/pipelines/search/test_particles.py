"""Weights of particles: potentials worked by hand, and what all of them leave of a whole answer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipelines.search.particles import Weight, shares, systematic, weighed

SCORES = [0.5, 2.0, -1.0, 1.5]


def potentials(kind, weight=2.0, scores=SCORES):
    """log G_t of each step of an answer."""
    state, logs = Weight(), []
    for step, score in enumerate(scores):
        after = weighed(state, kind, weight, score, ended=step == len(scores) - 1)
        logs.append(after.log_weight - state.log_weight)
        state = after
    return logs


def test_potentials_by_hand():
    """weight 2 and the scores 0.5, 2, -1, 1.5; a whole answer is worth exp(3)."""
    assert potentials("difference") == [1.0, 3.0, -6.0, 5.0]
    assert potentials("max") == [1.0, 4.0, 4.0, 3.0 - 9.0]
    assert potentials("sum") == [1.0, 5.0, 3.0, 3.0 - 9.0]
    assert potentials("current") == [1.0, 4.0, -2.0, 3.0]


@pytest.mark.parametrize("kind", ["difference", "max", "sum"])
def test_the_potentials_of_an_answer_multiply_to_the_tilt_of_its_own_score(kind):
    draw = np.random.default_rng(0)
    for length in (1, 2, 5, 9):
        scores = draw.normal(size=length).tolist()
        assert sum(potentials(kind, 1.7, scores)) == pytest.approx(1.7 * scores[-1])


def test_a_particle_without_a_score_has_no_weight():
    state = weighed(weighed(Weight(), "difference", 1.0, 1.0, ended=False), "difference", 1.0, math.nan, ended=False)
    assert state.log_weight == -math.inf and state.last == 1.0
    assert weighed(state, "difference", 1.0, 3.0, ended=True).log_weight == -math.inf


@pytest.mark.parametrize("count", [None, 1, 3])
def test_resampling_takes_each_particle_as_often_as_its_share_says(count):
    """Over all points of a fine grid the mean is exact, and no particle comes more than once too often or too seldom."""
    own = shares([0.0, math.log(3.0), -math.inf, math.log(2.0), 0.3])
    wanted = np.array(own) * (count or len(own))
    times = [np.bincount(systematic(own, (i + 0.5) / 2000, count), minlength=5) for i in range(2000)]
    assert np.abs(np.mean(times, axis=0) - wanted).max() < 2e-3
    assert np.abs(np.array(times) - wanted).max() < 1 and not np.array(times)[:, 2].any()


def test_the_last_place_falls_on_a_particle_that_has_weight():
    assert systematic([0.5, 0.5, 0.0], 1 - 1e-17) == [0, 1, 1]
