"""A judge as a reward, behind a real HTTP server."""

from __future__ import annotations

import re

import judge_server
import pytest
from method_toys import answer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop
from pipelines.judges import questions

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


def numbered(body):
    """All criteria of one question: a line `N: yes` where the answer has the letter that the criterion names."""
    system, _, _, text = judge_server.parts(body)
    asked = re.findall(r"^(\d+)\. (.*)$", system, re.MULTILINE)
    return "\n".join(f"{n}: {'yes' if wanted(criterion) in text else 'no'}" for n, criterion in asked)


def wanted(criterion):
    """`c` and `f` stand for a complete answer and for one free of praise of itself."""
    if "complete" in criterion:
        return "c"
    return "f" if "praises" in criterion else criterion[len("It has ")]


def test_a_rubric_is_asked_at_once():
    criteria = ["It has x.", {"criterion": "It has y.", "weight": 3}]
    with judge_server.running(numbered) as judge:
        rows = scored(judge, ["x", "xy", ""], form="rubric", criteria=criteria, together=True)
        strict = scored(judge, ["x", "xy"], form="rubric", criteria=criteria, together=True, all_or_nothing=True)
    assert [r.score for r in rows] == [0.25, 1.0, 0.0] and [r.score for r in strict] == [0.0, 1.0]
    assert len(judge.bodies) == 3, "one question an answer; the second run's are known"
    with judge_server.running(lambda body: "1: yes") as judge:
        rows = scored(judge, ["x and more"], form="rubric", criteria=criteria, together=True)
    assert rows[0].score is None and rows[0].components["judge_unread"] == 1


def test_a_template_holds_the_criteria():
    asked = []

    def rule(body):
        asked.append(body["messages"])
        return "1: yes\n2: no"

    with judge_server.running(rule) as judge:
        settings = {"form": "rubric", "together": True, "template": "{answer}|{prompt}|{criteria}"}
        rows = scored(judge, ["xy"], problems(rubric=["a {b}", "c"]), **settings)
    assert asked == [[{"role": "user", "content": "xy|2 + 2?|1. a {b}\n2. c"}]] and rows[0].score == 0.5


@pytest.mark.parametrize("together", [True, False])
def test_two_fixed_criteria_count_beside_each_rubric(together):
    """They reach the judge after the record's own, and each is a criterion of weight 1 like any other."""

    def rule(body):
        if together:
            return numbered(body)
        system, _, _, text = judge_server.parts(body)
        return f"Met: {'yes' if wanted(system.splitlines()[1]) in text else 'no'}"

    with judge_server.running(rule) as judge:
        shared = {"form": "rubric", "together": together, "fixed_criteria": True}
        own = problems(rubric=["It has x.", {"criterion": "It has y.", "weight": 3}])
        texts = ["xyfc", "xyf", "xyc", "xy", "fc"]
        share = [r.score for r in scored(judge, texts, own, **shared)]
        strict = [r.score for r in scored(judge, texts, own, all_or_nothing=True, **shared)]
        without = [r.score for r in scored(judge, ["xy"], own, form="rubric", together=together)]
    assert share == pytest.approx([1, 5 / 6, 5 / 6, 4 / 6, 2 / 6]) and strict == [1, 0, 0, 0, 0] and without == [1]
    if together:
        asked = re.findall(r"^\d\. (.*)$", judge.bodies[0]["messages"][0]["content"], re.MULTILINE)
        assert asked == ["It has x.", "It has y.", *(c.criterion for c in questions.FIXED)]


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
        ({"criteria": ["x"]}, r"rlvr\.reward\.form: criteria, all_or_nothing, together and fixed_criteria belong"),
        ({"together": True}, r"rlvr\.reward\.form: "),
        ({"fixed_criteria": True}, r"rlvr\.reward\.form: "),
        ({"form": "rubric", "template": "{answer}"}, r"rlvr\.reward\.template: it belongs to form: grade, or"),
        ({"form": "rubric", "together": True, "template": "{answer}"}, r"rlvr\.reward\.template: without {criteria}"),
        ({"form": "rubric", "criteria": [{"criterion": "x", "wight": 1}]}, r"rlvr\.reward\.criteria: "),
        ({"url": "localhost:8000"}, r"rlvr\.reward\.url"),
        ({"model": ""}, r"rlvr\.reward\.model"),
    ],
)
def test_what_is_wrong_is_named(settings, words):
    with pytest.raises(RecipeError, match=words):
        bind("rlvr.reward", {"kind": "judge", "model": "rule", **settings})
