"""Gains at equal length: against a loop, what changes nothing, and how often the interval covers the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from evaluation.length_gain import Answers, differs, length_gain


def drawn(problems, answers, longer, effect, slope, draw):
    """Answers of two checkpoints: the second's are longer, and better by `effect` at equal length; `slope` is what length is worth."""
    levels = draw.normal(0, 1, problems)
    sides = []
    for side in (0, 1):
        lengths = draw.gamma(4, (50 + side * longer) / 4, (problems, answers))
        odds = levels[:, None] + effect * side + slope * (lengths - 50) / 50
        scores = (draw.random((problems, answers)) < special.expit(odds)).astype(float)
        sides.append([Answers(*each) for each in zip(lengths, scores, strict=True)])
    return sides


@given(st.integers(0, 10**6))
def test_against_a_loop(seed):
    draw = np.random.default_rng(seed)
    old, new = drawn(6, 5, 20, 0.5, 1.0, draw)
    result = length_gain(old, new)
    rows = [(side, n, s) for side, rows in enumerate((old, new)) for each in rows for n, s in zip(*each, strict=True)]
    ordered = sorted(n for _, n, _ in rows)
    edges = sorted({ordered[int(np.ceil((len(ordered) - 1) * part / 10))] for part in range(1, 10)})
    weighted, counted = 0.0, 0
    for low, high in zip([-np.inf, *edges], [*edges, np.inf], strict=True):
        own = [(side, s) for side, n, s in rows if low <= n < high]
        means = [[s for side, s in own if side == wanted] for wanted in (0, 1)]
        if all(means):
            weighted += len(own) * (np.mean(means[1]) - np.mean(means[0]))
            counted += len(own)
    assert result.within == pytest.approx(weighted / counted)
    assert result.covered == pytest.approx(counted / len(rows))
    assert result.gain == pytest.approx(
        np.mean([s for side, _, s in rows if side]) - np.mean([s for side, _, s in rows if not side])
    )


@given(st.integers(0, 10**6))
def test_the_other_way_round_it_is_the_negative_one(seed):
    old, new = drawn(5, 4, 30, 0.0, 1.0, np.random.default_rng(seed))
    there, back = length_gain(old, new), length_gain(new, old)
    assert there.within == pytest.approx(-back.within) and there.low == pytest.approx(-back.high)


def test_what_has_no_answers_of_one_length_has_no_such_gain():
    old, new = [Answers([1, 2], [0, 0])] * 4, [Answers([90, 95], [1, 1])] * 4
    result = length_gain(old, new)
    assert result is None or result.covered < 1
    assert length_gain(old[:2], new[:2]) is None


def test_lengths_must_differ():
    old, _ = drawn(20, 4, 0, 1.0, 0.0, np.random.default_rng(0))
    assert differs(length_gain(old, drawn(20, 4, 40, 1.0, 0.0, np.random.default_rng(0))[1]))
    assert not differs(length_gain(old, old))


@pytest.mark.slow
@pytest.mark.parametrize(("problems", "answers"), [(30, 4), (100, 1), (300, 4)])
@pytest.mark.parametrize(("longer", "effect", "slope"), [(25, 0.0, 1.0), (25, 0.5, 1.0), (50, 0.0, 1.0)])
def test_intervals_cover_the_truth(problems, answers, longer, effect, slope):
    draw = np.random.default_rng(1)
    truth = length_gain(*drawn(5000, 8, longer, effect, slope, draw)).within
    assert abs(truth - (0.1 if effect else 0.0)) < 0.02
    results = [length_gain(*drawn(problems, answers, longer, effect, slope, draw)) for _ in range(200)]
    assert np.mean([each.low <= truth <= each.high for each in results]) >= 0.91
