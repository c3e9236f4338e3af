"""Agreement of a judge's verdicts with an expert's: its laws, and what is read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import verifiers
from pipelines.judges import questions
from pipelines.verifiers import verdicts

lists = st.lists(st.booleans(), min_size=1, max_size=12)


def judged(told, expert, **info):
    return verifiers.verify("verdicts", verdicts.write(told), json.dumps(expert), info)


@given(st.data(), lists)
def test_laws(data, expert):
    told = data.draw(st.lists(st.booleans(), min_size=len(expert), max_size=len(expert)))
    at = data.draw(st.integers(0, len(expert) - 1))
    other = [met != (number == at) for number, met in enumerate(told)]
    verdict, strict = judged(told, expert), judged(told, expert, strict=True)
    assert 0 <= verdict.score <= 1 and strict.score == (verdict.score == 1) == verdict.correct == (told == expert)
    step = 1 / len(expert) if told[at] != expert[at] else -1 / len(expert)
    assert judged(other, expert).score == pytest.approx(verdict.score + step), "each verdict counts alike"
    order = data.draw(st.permutations(range(len(expert))))
    assert judged([told[i] for i in order], [expert[i] for i in order]).score == pytest.approx(verdict.score)


@given(lists, st.data())
def test_counts_give_precision_and_recall(expert, data):
    told = data.draw(st.lists(st.booleans(), min_size=len(expert), max_size=len(expert)))
    counts = judged(told, expert).components
    both = len([1 for mine, met in zip(told, expert, strict=True) if mine and met])
    assert (counts["met"], counts["said_met"], counts["met_agreed"]) == (expert.count(True), told.count(True), both)


@given(lists, st.text(alphabet="a 1:\nye", max_size=30))
def test_what_is_written_is_read_whatever_stands_before_it(told, thoughts):
    text = f"<think>{thoughts}\n1: no</think>Well.\n{verdicts.write(told)}"
    assert questions.read_verdicts(text, len(told)) == told
    assert verifiers.verify("verdicts", text, json.dumps(told), {}).correct


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1: yes\n2: no", [True, False]),
        ("2: No.\n> **Criterion 1: YES**", [True, False]),
        ("1: yes\n1: yes\n2: no", [True, False]),
        ("1: yes\n1: no\n2: no", None),
        ("1: yes", None),
        ("1: yes\n2: no\n3: no", None),
        ("0: yes\n1: yes\n2: no", None),
        ("1: yes\n2: no, but nearly", None),
        ("It is so that 1: yes\n2: no", None),
        ("all criteria are met", None),
    ],
)
def test_what_is_read(text, told):
    assert verdicts.read(text, 2) == told
    verdict = verifiers.verify("verdicts", text, "[true, false]", {})
    assert (verdict.score, verdict.status) == ((1.0, "correct") if told else (0.0, "unparsable"))


@pytest.mark.parametrize("answer", ["[]", "[1, 0]", "true", "[true, null]", "yes"])
def test_a_bad_row_is_unscored(answer):
    assert verifiers.verify("verdicts", "1: yes\n2: no", answer, {}).score is None


def test_a_gold_answer_is_correct():
    assert verifiers.verify("verdicts", verifiers.gold("verdicts", "[false, true]", {}), "[false, true]", {}).correct
