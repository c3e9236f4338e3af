"""Picking checkpoints by a cheap score: return over risk of the k that it ranks first."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.risk_return import LARGEST, cheap_score, tail_mean, top_k

SHARES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20).map(lambda n: n / 20)), min_size=2, max_size=14)


def test_worked_by_hand():
    """The sheet's example, from the released code: v = 0.50, 0.58, 0.46 of 0.54, over 0.45."""
    two, three, four = top_k([9, 8, 7, 6], [0.50, 0.58, 0.46, 0.54], 0.45)
    assert three.sharpe == pytest.approx(2.127624, abs=1e-6) and three.mean == pytest.approx(0.513333, abs=1e-6)
    assert two.std == pytest.approx(0.08 / 2**0.5) and two.sharpe == pytest.approx(0.13 / (0.08 / 2**0.5))
    assert (four.best, four.worst) == (0.58, 0.46)


def test_a_start_that_nothing_beats_and_equal_checkpoints():
    assert [row.sharpe for row in top_k([1, 2, 3], [0.1, 0.2, 0.3], 0.5)] == [0.0, 0.0]
    assert [row.sharpe for row in top_k([1, 2], [0.4, 0.4], 0.1)] == [None]


@given(SHARES, st.floats(0, 1))
def test_every_row_is_about_the_first_k(rows, baseline):
    """Against a loop that picks one after the other; at k = all of them every cheap score says the same."""
    estimates, values = zip(*rows, strict=True)
    left, picked = list(range(len(rows))), []
    told = {row.k: row for row in top_k(estimates, values, baseline)}
    while left:
        best = max(left, key=lambda i: (estimates[i], -i))
        left.remove(best)
        picked.append(values[best])
        if 2 <= len(picked) <= LARGEST:
            row = told.pop(len(picked))
            assert (row.best, row.worst) == (max(picked), min(picked)) and row.mean == pytest.approx(
                sum(picked) / len(picked)
            )
            assert row.std == pytest.approx(statistics.stdev(picked))
            assert row.sharpe is None or row.sharpe == pytest.approx(max(0, row.best - baseline) / row.std)
            assert (row.sharpe is None) == (row.best == row.worst)
    assert not told


def test_only_metrics_that_rank_models_are_cheap_scores():
    assert cheap_score("rlvr-2: reward/correct", [(1, 0.0), (2, 0.25), (3, 0.5), (4, 1.0)]) == 1.0
    assert cheap_score("preference: accuracy/heldout", [(1, 0.75)]) == 0.75
    assert cheap_score("sft: loss/train", [(1, 2.0)]) == -2.0
    for name in ("rlvr: rollout/length_mean", "sample: pass_at_1", "reward_model: accuracy/heldout", "rlvr: nothing"):
        assert cheap_score(name, [(1, 0.5)]) is None
    assert cheap_score("rlvr: reward/mean", []) is None and tail_mean([1.0, float("nan")]) is None
