"""The tournament's edges: a judge that fails, rows that cannot play, equal answers."""

from __future__ import annotations

import pytest
from method_toys import answer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop
from pipelines.rlvr.reward.arena_tournament import _meet_twice, advantages, bracket, tournament

UID = "a" * 32
PROBLEM = Problem(uid=UID, prompt=[], answer="ok", verifier="exact", source="toy", licence="MIT")


def scores(rows, **settings):
    bind("rlvr.reward", {"kind": "arena_tournament", **settings}).fn.score(rows, {UID: PROBLEM})
    return [row.score for row in rows]


def test_the_verifier_s_scores_rank_where_there_is_no_judge():
    """One of three is correct: it is first; the others meet as equals, and the bracket's order decides."""
    rows = [answer(UID, 0, text) for text in ("no", "ok", "nay")]
    made = scores(rows)
    assert made[1] == 1.0 and sorted(made) == [0.0, 0.5, 1.0]
    assert [row.correct for row in rows] == [False, True, False]


def test_rows_without_a_score_do_not_play():
    """Neither one that the infrastructure failed, nor one whose verifier did."""
    rows = [answer(UID, 0, text) for text in ("ok", "ok", "no", "no")]
    rows[0].stop = Stop.ERROR
    rows[1].status = "verifier_failed"
    assert scores(rows) == [None, None, 1.0, 0.0]


def test_a_score_of_0_lies_between_negative_and_positive_ones():
    assert scores([answer(UID, 0, "x", score=score) for score in (-0.5, 0.0)]) == [0.0, 1.0]
    assert scores([answer(UID, 0, "x", score=score) for score in (0.0, 0.5)]) == [0.0, 1.0]


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_match_is_played_again_once(failures):
    calls = []

    def compare(a, b):
        calls.append((a, b))
        if len(calls) <= failures:
            raise OSError("no answer")
        return 1.0, 0.0

    assert _meet_twice(compare, 3, 4) == ((1.0, 0.0) if failures < 2 else None)
    assert calls == [(3, 4)] * min(2, failures + 1)


def test_a_match_that_fails_twice_leaves_it_to_the_seeds():
    def compare(a, b):
        raise OSError("no answer")

    assert tournament(4, compare) == [0, 1, 3, 2], "0 meets 3, 1 meets 2; the seeds are the order of the rows"


def test_groups_of_one_and_two():
    assert tournament(1, lambda a, b: (1.0, 0.0)) == [0] and bracket(1) == [0] and bracket(2) == [0, 1]
    assert tournament(2, lambda a, b: (float(a), float(b))) == [1, 0]
    assert advantages([0.7]) == [0.0] and advantages([]) == []
    assert advantages([1.0, 0.0]) == pytest.approx([0.707106, -0.707106], abs=1e-5)
    assert scores([answer(UID, 0, "ok")]) == [0.0] and scores([answer(UID, 0, "ok")], as_advantage=True) == [0.0]
