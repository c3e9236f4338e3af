"""A judge's reward: the sheet's values and its laws."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import verifiers
from pipelines.judges import questions
from pipelines.verifiers import grades


def score(predicted, gold, **info):
    text = "First: {}\nSecond: {}".format(*predicted)
    return verifiers.verify("grades", text, json.dumps(list(gold)), info).score


def test_the_sheet_s_values():
    assert [score(p, (4, 2)) for p in ((4, 2), (5, 2), (3, 3), (2, 4))] == [1.5, 1.25, 0.5, 0.0]
    verdict = verifiers.verify("grades", "both are fine", "[4, 2]", {})
    assert (verdict.score, verdict.status) == (-1.0, "unparsable")


grade = st.integers(1, 5)


@given(grade, grade, grade, grade)
def test_laws(a, b, x, y):
    assert score((x, y), (x, y)) == 1.5 >= score((a, b), (x, y)) >= 0
    assert score((a, b), (x, y)) == score((b, a), (y, x)), "the places do not matter"
    away = a + (1 if a >= x else -1)
    if 1 <= away <= 5 and (away > b) == (a > b) and (away < b) == (a < b):
        assert score((away, b), (x, y)) <= score((a, b), (x, y))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("First: 4\nSecond: 2", (4, 2)),
        ("second: **2**\n> First: 4/5.", (4, 2)),
        ("First: 4\nFirst: 4\nSecond: 2", (4, 2)),
        ("First: 4\nFirst: 3\nSecond: 2", None),
        ("First: 4", None),
        ("First: 6\nSecond: 2", None),
        ("First: 4 or 5\nSecond: 2", None),
        ("I say First: 4\nSecond: 2", None),
    ],
)
def test_what_is_read(text, read):
    assert grades.read(text, 1, 5) == read
    assert questions.read_comparison(text, 1, 5) == read or "First: 3" in text, "the judge's own reader agrees"


@pytest.mark.parametrize(
    ("answer", "info"), [("[4]", {}), ("[4, 6]", {}), ("4 2", {}), ("[4.0, 2]", {}), ("[4, 2]", {"part": "x"})]
)
def test_a_bad_row_is_unscored(answer, info):
    assert verifiers.verify("grades", "First: 4\nSecond: 2", answer, info).score is None


def test_a_gold_answer_is_correct():
    assert verifiers.verify("grades", verifiers.gold("grades", "[3, 3]", {}), "[3, 3]", {}).correct
