"""TTRL: the group's own label."""

from __future__ import annotations

from method_toys import answer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop

UID = "a" * 32


def scored(texts, *, gold="4", verifier="number", **settings):
    rows = [answer(UID, 3, text) for text in texts]
    problem = Problem(uid=UID, prompt=[], answer=gold, verifier=verifier, source="s", licence="l")
    bind("rlvr.reward", {"kind": "ttrl", **settings}).fn.score(rows, {UID: problem})
    return rows


def test_the_majority_is_the_label_and_correct_stays_the_verifier_s():
    rows = scored(["so 5", "5", "4", "it is 5.0"])
    assert [row.score for row in rows] == [1.0, 1.0, 0.0, 1.0], "5.0 is 5 to the record's verifier, and votes with it"
    assert [row.correct for row in rows] == [False, False, True, False]
    assert rows[0].components["label_correct"] == 0.0 and rows[0].components["majority"] == 0.75


def test_what_votes_alone_is_unscored():
    rows = scored(["7", "8", "8", "8"], gold="8", trains=2)
    assert [row.score for row in rows] == [0.0, 1.0, None, None]
    assert rows[0].components["label_correct"] == 1.0 and rows[0].components["majority"] == 0.75


def test_a_tie_is_unscored_and_nobody_s_answer_is_worth_nothing():
    assert [row.score for row in scored(["1", "2"])] == [None, None]
    assert [row.score for row in scored(["", ""])] == [0.0, 0.0]


def test_what_the_infrastructure_failed_neither_votes_nor_scores():
    rows = [answer(UID, 3, text) for text in ("1", "2", "2", "1")]
    rows[3].stop = Stop.ERROR
    problem = Problem(uid=UID, prompt=[], answer="9", verifier="exact", source="s", licence="l")
    bind("rlvr.reward", "ttrl").fn.score(rows, {UID: problem})
    assert [row.score for row in rows] == [0.0, 1.0, 1.0, None]


def test_records_need_no_answer():
    rows = scored(["5", "5", "4"], gold="")
    assert [row.score for row in rows] == [1.0, 1.0, 0.0] and not any(row.correct for row in rows)
