"""Sums that an expert works out: answers are right, lengths follow the effort, and no test question is ever trained on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import environments, verifiers
from pipelines.base.errors import RecipeError
from pipelines.data.records import Problem
from pipelines.environments import worked_sums
from pipelines.papers.autothink import thinks
from pipelines.papers.thinkdial import mode_of


def rows(size, seed=1, **config):
    return list(environments.problems("worked_sums", size, seed, config))


@given(st.lists(st.integers(-99, 99).filter(bool), min_size=2, max_size=6), st.sampled_from(worked_sums.EFFORTS))
def test_every_step_is_true_and_more_effort_is_longer(numbers, effort):
    numbers[0] = abs(numbers[0])
    text = worked_sums.thoughts(numbers, effort)
    for line in text.split("; ") if text else []:
        left, right = line.split(" = ")
        assert eval(left) == int(right)
    assert len(text.split("; ")) == {"low": 1, "medium": len(numbers) - 1, "high": 2 * len(numbers) - 2}[effort]
    if effort == "high":
        assert text.endswith(f"= {numbers[0]}"), "taken back to where it began"


def test_the_expert_is_right_and_thinks_as_often_as_told():
    drawn = rows(300, demonstrations=True, thinking=0.7)
    verdicts = verifiers.verify_many([(r["verifier"], r["info"]["solution"], r["answer"], r["info"]) for r in drawn])
    assert all(verdict.correct for verdict in verdicts)
    assert 0.6 < sum(thinks(r["info"]["solution"]) is True for r in drawn) / 300 < 0.8
    assert {r["info"]["terms"] for r in drawn} == {2, 3, 4}
    assert "solution" not in rows(1)[0]["info"] and rows(5) == rows(5) != rows(5, seed=2)


def test_efforts_are_named_and_kept_to_where_they_are_suited():
    drawn = rows(300, demonstrations=True, efforts=["low", "high"])
    assert {r["info"]["effort"] for r in drawn} == {"low", "high"}
    for row in drawn:
        assert row["prompt"][0] == {"role": "system", "content": f"Reasoning effort: {row['info']['effort']}."}
        assert thinks(row["info"]["solution"]) is (row["info"]["effort"] == "high")
        assert mode_of(Problem(uid="u", source="s", licence="l", **row)) == row["info"]["effort"]
    mixed = rows(300, demonstrations=True, efforts=["low", "high"], suited=0.0)
    wrong = [r for r in mixed if thinks(r["info"]["solution"]) is not (r["info"]["effort"] == "high")]
    assert 100 < len(wrong) < 200


def test_test_questions_are_never_trained_on():
    train, test = (
        {r["prompt"][0]["content"] for r in rows(400, seed, part=part)} for seed, part in ((1, "train"), (2, "test"))
    )
    assert len(test) > 300 and not train & test


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"efforts": ["lowest"]}, "no effort 'lowest'"),
        ({"terms": [1, 2]}, "terms are from 2"),
        ({"most": 0}, "most from 1"),
    ],
)
def test_settings_that_make_no_questions(config, words):
    with pytest.raises(RecipeError, match=words):
        rows(1, **config)


def test_rewritings_keep_the_result_and_stay_out_of_the_test_part():
    drawn = rows(300, demonstrations=True, rewriting=0.5, terms=[2, 3], most=9)
    written = [row for row in drawn if row["info"]["solution"].startswith("[")]
    assert 110 < len(written) < 190
    tests = {row["prompt"][0]["content"] for row in rows(600, 7, part="test", terms=[2, 3], most=9)}
    for row in written:
        question, shown = row["info"]["solution"][1:-1], row["prompt"][-1]["content"]
        numbers = question.removeprefix("What is ").removesuffix("?")
        assert eval(numbers) == int(row["answer"]) == int(shown.rpartition("</think>")[2]) and question not in tests
        assert shown.startswith(worked_sums.REWRITE.partition("{")[0])
        assert question != f"What is {shown.partition('<think>')[2].partition(' = ')[0]}?" or row["info"]["terms"] > 2
    plain = rows(50, demonstrations=True)
    assert plain == rows(50, demonstrations=True, rewriting=0.0)
