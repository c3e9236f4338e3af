"""The tournament's edges: a judge that fails, rows that cannot play, equal answers."""

from __future__ import annotations

import judge_server
import pytest
from method_toys import answer

from pipelines.base.errors import UserError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop
from pipelines.judges import endpoint
from pipelines.papers.arena_tournament import _meet_twice, advantages, bracket, tournament

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


def by_letters(body):
    first, second = judge_server.pair(body)
    return f"First: {len(first)}\nSecond: {len(second)}"


def test_a_language_model_ranks_what_no_verifier_can():
    """Longer is better to this judge; 2 (G - 1) matches, each in both orders, the same pair asked once."""
    with judge_server.running(by_letters) as server:
        rows = [answer(UID, 0, text) for text in ("aa", "a", "aaaa", "aaa")]
        judge = {"model": "m", "url": server.url, "cache": False}
        assert scores(rows, judge=judge) == pytest.approx([1 / 3, 0.0, 1.0, 2 / 3])
        assert len(server.bodies) <= 2 * 2 * 3
    assert [row.components["judge_order_flips"] for row in rows] == [0.0] * 4
    assert all(row.correct is False for row in rows), "the verdict stays the verifier's"


def test_a_judge_that_likes_the_first_place_ranks_nothing_and_is_seen():
    with judge_server.running(lambda body: "First: 9\nSecond: 1") as server:
        rows = [answer(UID, 0, text) for text in ("a", "b", "c")]
        scores(rows, judge={"model": "m", "url": server.url, "cache": False})
    assert [row.components["judge_order_flips"] for row in rows] == [1.0] * 3


def test_a_judge_that_never_answers_ends_the_run(monkeypatch):
    monkeypatch.setitem(endpoint.ChatEndpoint.__init__.__kwdefaults__, "patience", ())
    with judge_server.running(lambda body: (500, "broken")) as server, pytest.raises(UserError, match="answered none"):
        scores([answer(UID, 0, t) for t in ("a", "b")], judge={"model": "m", "url": server.url, "cache": False})


def test_a_judge_that_answers_now_and_then_leaves_the_rest_to_the_seeds(monkeypatch):
    monkeypatch.setitem(endpoint.ChatEndpoint.__init__.__kwdefaults__, "patience", ())

    def rule(body):
        return (500, "broken") if "c" in judge_server.pair(body) else by_letters(body)

    with judge_server.running(rule) as server:
        rows = [answer(UID, 0, text) for text in ("aa", "a", "c")]
        made = scores(rows, judge={"model": "m", "url": server.url, "cache": False})
    assert sorted(made) == [0.0, 0.5, 1.0] and made[0] > made[1], "the two that could be compared"


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
