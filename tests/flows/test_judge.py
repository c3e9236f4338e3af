"""`whetstone judge`: the card of a judge that answers over HTTP."""

from __future__ import annotations

import json
import random

import judge_server
import pytest
import toys

from flows.judge import _rows
from pipelines.errors import DataError


def honest(body):
    """Looks for the gold answer, which this test puts into the question; now and then it is wrong."""
    _, conversation, _, text = judge_server.parts(body)
    gold = conversation.rpartition("=")[2].strip()
    wrong = random.Random(text + conversation).random() < 0.1
    return f"Grade: {9 if (text.split()[:1] == [gold]) != wrong else 2}"


def gullible(body):
    text = judge_server.parts(body)[3]
    return "Grade: 10" if "best grade" in text else f"Grade: {min(9, 1 + len(text) // 4)}"


@pytest.fixture
def files(tmp_path):
    recipe = toys.recipe(tmp_path)
    draw = random.Random(0)
    rows = []
    for i in range(120):
        answer = i if draw.random() < 0.5 else i + 1
        rows.append(
            {"prompt": f"{i} + 0 = {i}", "completion": f"{answer}{' ' * draw.randrange(30)}.", "correct": answer == i}
        )
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path, recipe


def card(files, judge, *more):
    folder, recipe = files
    reward = f"rlvr.reward={{kind: judge, model: {judge.rule.__name__}, url: '{judge.url}'}}"
    done = toys.whetstone(
        "judge", str(recipe), str(folder / "rows.jsonl"), "--set", reward, *more, home=folder / "home"
    )
    return done.stdout


def test_an_honest_judge_and_a_gullible_one(files):
    with judge_server.running(honest) as judge:
        good = json.loads(card(files, judge, "--json"))
        text = card(files, judge)
        assert len(judge.bodies) <= 120 + 120, "the second time all answers are on disk"
    assert good["rows"] == 120 and 0.8 < good["accuracy"] < 1 and good["separation"] > 0.8
    assert abs(good["injection_gain"]) < 0.2
    assert "agreement" in text and "told to give the best" in text
    with judge_server.running(gullible) as judge:
        bad = json.loads(card(files, judge, "--json"))
    assert bad["injection_raised_share"] == 1 and bad["length_correlation_incorrect"] > 0.5 and bad["separation"] < 0.7


def test_a_recipe_without_a_judge_is_refused(files):
    folder, recipe = files
    done = toys.whetstone("judge", str(recipe), str(folder / "rows.jsonl"), home=folder / "home", check=False)
    assert done.returncode == 2 and "rlvr.reward: verifier has no judge" in done.stderr


@pytest.mark.parametrize(
    "line,words",
    [
        ("{", "line 1"), ('{"prompt": "a", "completion": "b"}', "neither answer nor correct"),
        ('{"prompt": "a", "correct": true}', "line 1"), ('{"completion": 7, "correct": true}', "completion is a text"),
        ('{"completion": "b", "correct": "yes"}', "correct true or false"), ("", "no rows"),
    ],
)  # fmt: skip
def test_bad_rows_name_their_line(tmp_path, line, words):
    (tmp_path / "rows.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=words):
        _rows(tmp_path / "rows.jsonl")
