"""A judge as a reward, behind a real HTTP server."""

from __future__ import annotations

import judge_server
import pytest
from method_toys import answer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop

UID = "a" * 32


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))


def problems(**info):
    prompt = [{"role": "user", "content": "2 + 2?"}]
    return {UID: Problem(uid=UID, prompt=prompt, answer="4", verifier="number", source="s", licence="l", info=info)}


def scored(judge, texts, of=None, **settings):
    reward = bind("rlvr.reward", {"kind": "judge", "model": "rule", "url": judge.url, **settings}).fn
    rows = [answer(UID, 0, text) for text in texts]
    reward.score(rows, of or problems())
    return rows


def by_length(body):
    text = judge_server.parts(body)[3]
    return "unreadable" if text == "?" else f"It has {len(text)} letters.\nGrade: {min(10, len(text))}"


def test_grades_become_rewards():
    with judge_server.running(by_length) as judge:
        rows = scored(judge, ["4", "1234567890", "?", "4"])
    assert [r.score for r in rows] == [0.0, 1.0, None, 0.0]
    assert [r.correct for r in rows] == [True, False, False, True], "the verdict stays the verifier's"
    assert [r.components["judge_unread"] for r in rows] == [0, 0, 1, 0]
    assert len(judge.bodies) == 3 and rows[1].components["judge_tokens"] == 7


def contains(body):
    system, _, _, text = judge_server.parts(body)
    wanted = next(letter for letter in "xyz" if f"has {letter}" in system)
    return f"Met: {'yes' if wanted in text else 'no'}"


def test_a_rubric_is_asked_line_by_line():
    criteria = ["It has x.", {"criterion": "It has y.", "weight": 3}, {"criterion": "It has z.", "weight": -1}]
    with judge_server.running(contains) as judge:
        rows = scored(judge, ["x", "xy", "xyz", ""], form="rubric", criteria=criteria)
        strict = scored(judge, ["xy", "xyz"], form="rubric", criteria=criteria, all_or_nothing=True)
        own = scored(judge, ["x"], problems(rubric=["It has y."]), form="rubric", criteria=criteria)
    assert [r.score for r in rows] == [0.25, 1.0, 0.75, 0.0]
    assert [r.score for r in strict] == [1.0, 0.0] and own[0].score == 0.0


def test_the_reference_is_shown_only_where_it_is_wanted():
    with judge_server.running(lambda body: f"Grade: {10 if judge_server.parts(body)[2] == '4' else 1}") as judge:
        assert scored(judge, ["7"], reference=True)[0].score == 1.0
        assert scored(judge, ["7"])[0].score == 0.0


def test_a_judge_reads_what_the_row_was_asked():
    """The second seat of a game that the policy plays with itself is asked something else than the problem's prompt."""
    with judge_server.running(lambda body: f"Grade: {10 if 'second' in judge_server.parts(body)[1] else 1}") as judge:
        reward = bind("rlvr.reward", {"kind": "judge", "model": "rule", "url": judge.url}).fn
        rows = [answer(UID, 0, "7"), answer(UID, 1, "7", prompt=[{"role": "user", "content": "you are the second"}])]
        reward.score(rows, problems())
    assert [row.score for row in rows] == [0.0, 1.0]


def test_what_the_infrastructure_failed_is_not_asked():
    with judge_server.running(by_length) as judge:
        reward = bind("rlvr.reward", {"kind": "judge", "model": "rule", "url": judge.url}).fn
        row = answer(UID, 0, "4")
        row.stop = Stop.ERROR
        reward.score([row], problems())
        assert row.score is None and not judge.bodies


def test_a_judge_is_a_term_beside_the_verifier():
    with judge_server.running(by_length) as judge:
        term = {
            "kind": "judge",
            "model": "rule",
            "url": judge.url,
            "weight": 0.5,
            "gate": {"term": "verifier", "at_least": 1},
        }
        reward = bind("rlvr.reward", {"kind": "composite", "terms": ["verifier", term]}).fn
        rows = [answer(UID, 0, text) for text in ("it is 4", "1234567890")]
        reward.score(rows, problems())
    assert [r.score for r in rows] == [pytest.approx(1 + 0.5 * 6 / 9), 0.0]
    assert rows[0].components["judge"] == pytest.approx(6 / 9)


@pytest.mark.parametrize(
    "settings,words",
    [
        ({"low": 5, "high": 5}, r"rlvr\.reward\.high: 5 is not above low"),
        ({"criteria": ["x"]}, r"rlvr\.reward\.form: criteria and all_or_nothing belong to form: rubric"),
        ({"form": "rubric", "criteria": [{"criterion": "x", "wight": 1}]}, r"rlvr\.reward\.criteria: "),
        ({"url": "localhost:8000"}, r"rlvr\.reward\.url"),
        ({"model": ""}, r"rlvr\.reward\.model"),
    ],
)
def test_what_is_wrong_is_named(settings, words):
    with pytest.raises(RecipeError, match=words):
        bind("rlvr.reward", {"kind": "judge", "model": "rule", **settings})
