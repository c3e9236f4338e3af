"""Turns graded by a judge and normalised by the outcome: the sheet's values, what the judge reads, laws."""

from __future__ import annotations

import judge_server
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import JudgeScorer, conversation

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.papers.ppr import renorm

UID = "a" * 32


def problem(**info):
    prompt = [{"role": "user", "content": "where is it"}]
    return {UID: Problem(uid=UID, prompt=prompt, answer="4", verifier="number", source="s", licence="l", info=info)}


def row(*messages, **more):
    return conversation(UID, *messages, earlier=0.3, **more)


def paid(rule, *rows, info=None, **settings):
    settings = {"path": "./judge", "principles": ["be brief"], **settings}
    reward, lender = bind("rlvr.reward", {"kind": "ppr", **settings}).fn, JudgeScorer(rule)
    reward.connect(lender)
    reward.score(list(rows), problem(**(info or {})))
    return [each.turn_reward for each in rows], lender


GRADES = {"go left": "Grade: 5", "look": "Grade: 8", "sing": "Grade: 0"}


def by_table(body):
    return GRADES.get(judge_server.parts(body)[3], "no idea")


def test_the_sheet_s_values():
    messages = ("go left", "a wall", "look", "a door", "sing", "la", "4")
    good, bad, single = row(*messages), row(*messages, outcome=0.0), row("4")
    turns, _ = paid(by_table, good, bad, single)
    assert turns[0] == pytest.approx([0.5, 0.8, 0.0, 1.0]) and turns[1] == pytest.approx([-0.5, -0.2, -1.0, 0.0])
    assert turns[2] == [1.0] and single.score == 1.0
    assert good.score == pytest.approx(2.3) and good.components["outcome"] == 1.0
    assert good.components["turn.ppr"] == pytest.approx(1.3) and good.correct and not bad.correct
    assert paid(by_table, row(*messages), beta=0.0)[0][0] == pytest.approx([1.5, 1.8, 1.0, 1.0])


def test_the_judge_reads_the_conversation_up_to_the_turn_and_the_principles():
    _, lender = paid(by_table, row("go left", "a wall", "look", "a door", "4"), info={"principles": ["look first"]})
    assert len(lender.asked) == 2, "the last turn is not graded"
    system, conversation, _, answer = judge_server.parts({"messages": lender.asked[1]})
    assert answer == "look" and "go left" in conversation and "a wall" in conversation and "a door" not in conversation
    assert "- look first" in system and "be brief" not in system and "step 2 of 3" in system


def test_a_grade_that_cannot_be_read_is_nothing():
    played = row("what", "a wall", "4")
    assert paid(by_table, played)[0] == [[0.0, 1.0]] and played.components["judge_unread"] == 1


def test_without_principles_or_turns_it_says_so():
    with pytest.raises(RecipeError, match=r"principles: the problem a+ has no info\.principles"):
        paid(by_table, row("go left", "a wall", "4"), principles=[])
    flat = row("4")
    flat.turn_reward = None
    with pytest.raises(RecipeError, match=r"ppr pays turns.*multi_turn"):
        paid(by_table, flat)
    with pytest.raises(RecipeError, match="give one of them"):
        bind("rlvr.reward", {"kind": "ppr", "model": "a", "path": "./b"})


@given(st.lists(st.floats(0, 1), max_size=6), st.sampled_from([0.0, 1.0]))
def test_no_turn_contradicts_the_outcome(grades, outcome):
    *before, last = renorm(grades, outcome)
    assert last == outcome and len(before) == len(grades)
    assert all(value >= 0 for value in before) if outcome else all(value <= 0 for value in before)


def test_behind_an_endpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    with judge_server.running(by_table) as judge:
        turns, _ = paid(by_table, row("look", "a wall", "4"), path=None, model="rule", url=judge.url)
    assert turns == [[0.8, 1.0]] and len(judge.bodies) == 1
