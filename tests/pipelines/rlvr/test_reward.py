"""Reward parts that compare completions with one another."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_toys import answer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.papers.arena_tournament import rank_rewards, tournament


def problems(*uids):
    return {
        uid: Problem(
            uid=uid, prompt=[{"role": "user", "content": "?"}], answer="4", verifier="number", source="s", licence="l"
        )
        for uid in uids
    }


def longer(problem, first, second):
    return float(len(first)), float(len(second))


def broken(problem, first, second):
    raise TimeoutError


@given(st.integers(1, 9), st.randoms(use_true_random=False))
def test_the_best_of_a_fair_tournament_wins(count, random):
    quality = random.sample(range(100), count)
    calls = []

    def meet(a, b):
        calls.append((a, b))
        return 5 + quality[a] - quality[b], 5 + quality[b] - quality[a]

    ranked = tournament(count, meet)
    assert sorted(ranked) == list(range(count)) and len(calls) == 2 * (count - 1)
    assert quality[ranked[0]] == max(quality)
    rewards = rank_rewards(ranked)
    if count > 1:
        assert sorted(rewards) == pytest.approx([i / (count - 1) for i in range(count)])


def test_views_label_each_other():
    original, other = ["4", "4", "5", "none", "4"], ["4", "7", "7", "7", "4"]
    rows = [answer("a" * 32, 0, t) for t in original] + [answer("a" * 32, 3, t) for t in other]
    method = bind("rlvr.reward", "co_reward").fn
    method.score(rows, problems("a" * 32))
    assert [r.score for r in rows] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert rows[0].correct and rows[0].components["views_agree"] == 0, "the gold answer is for the measurements"
    swapped = [answer("a" * 32, 3, t) for t in original] + [answer("a" * 32, 0, t) for t in other]
    method.score(swapped, problems("a" * 32))
    assert [r.score for r in swapped] == [r.score for r in rows]
    tied = [answer("a" * 32, 0, t) for t in ("4", "5")] + [answer("a" * 32, 1, t) for t in ("4", "4")]
    method.score(tied, problems("a" * 32))
    assert [r.score for r in tied] == [1, 0, None, None], "a tie labels nobody"
    with pytest.raises(RecipeError, match="paraphrase"):
        method.score(rows[:5], problems("a" * 32))


def test_a_judge_of_one_s_own():
    import sys

    sys.modules["judges_of_this_test"] = sys.modules[__name__]
    rows = [answer("b" * 32, 2, "x" * n) for n in (3, 5, 1, 4, 2)]
    bind("rlvr.reward", {"kind": "arena_tournament", "judge": "judges_of_this_test:longer"}).fn.score(
        rows, problems("b" * 32)
    )
    assert [r.score for r in rows] == [0.5, 1.0, 0.0, 0.75, 0.25]
    spec = {"kind": "arena_tournament", "judge": "judges_of_this_test:longer", "as_advantage": True}
    bind("rlvr.reward", spec).fn.score(rows, problems("b" * 32))
    assert statistics.fmean(r.score for r in rows) == pytest.approx(0, abs=1e-9)
    spec = {"kind": "arena_tournament", "judge": "judges_of_this_test:broken"}
    bind("rlvr.reward", spec).fn.score(rows, problems("b" * 32))
    assert sorted(r.score for r in rows) == [0, 0.25, 0.5, 0.75, 1.0]
    with pytest.raises(RecipeError, match=r"judges_of_this_test has no none"):
        bind("rlvr.reward", {"kind": "arena_tournament", "judge": "judges_of_this_test:none"})
