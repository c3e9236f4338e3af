"""Questions in a recipe's own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.contract import template
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.judges import questions
from pipelines.judges.pairwise import PairwiseJudge
from pipelines.recipe.selection import Selection

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
PROBLEM = Problem(uid="u", prompt=MESSAGES, answer="4", verifier="number", source="s", licence="l")
EVERY = "{conversation}|{prompt}|{reference}|{low}|{high}|{instruction}|{answer}"


def test_every_field_is_filled():
    [message] = questions.grade(PROBLEM, "<think>5?</think> 4 ", low=0, high=2, instruction="Add.", template=EVERY)
    assert message == {"role": "user", "content": "[system] Be brief.\n[user] 2 + 2?|2 + 2?|4|0|2|Add.|4"}
    [message] = questions.comparison(PROBLEM, "4", "5", low=1, high=5, template="{prompt} {first} {second}")
    assert message["content"] == "2 + 2? 4 5"


@given(st.text())
def test_an_answer_is_put_in_as_it_is_and_cannot_hold_the_mark(answer):
    text = questions.grade(PROBLEM, answer, low=0, high=1, template="{mark}\n{answer}\n{mark}")[0]["content"]
    mark, _, rest = text.partition("\n")
    assert rest.endswith(mark) and mark not in rest[: -len(mark)]
    assert template.fill("{answer}", {"answer": answer}) == answer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{prompt}", r"without \{answer\}"),
        ("{answer} {gold}", r"\{gold\} is no field"),
        ("{answer.__class__}", "is no field"),
        ("{answer!r}", "is no field"),
        ("{answer:>9}", "is no field"),
        ("{answer} {", "Write {{ and }}"),
    ],
)
def test_a_template_that_is_none(text, words):
    with pytest.raises(RecipeError, match=rf"rlvr\.reward\.template: .*{words}"):
        bind("rlvr.reward", {"kind": "judge", "model": "m", "template": text})
    with pytest.raises(ValueError, match=words):
        Selection.model_validate({"kind": "graded", "template": text})


def test_a_comparison_needs_both_answers():
    with pytest.raises(RecipeError, match=r"judge\.template: without \{second\}"):
        PairwiseJudge({"model": "m", "template": "{first}"}, "judge")
    with pytest.raises(RecipeError, match="belongs to form: grade"):
        bind(
            "rlvr.reward", {"kind": "judge", "model": "m", "form": "rubric", "criteria": ["x"], "template": "{answer}"}
        )


def test_the_judge_asks_what_curation_wrote():
    """A judge that learned from `select: graded` gets the very question that it learned."""
    text = "judge {prompt}: {answer}"
    reward = bind("rlvr.reward", {"kind": "judge", "model": "m", "low": 0, "high": 1, "template": text}).fn
    asked = reward._questions(PROBLEM, "4", [])
    assert asked == [questions.grade(PROBLEM, "4", low=0, high=1, template=text)] == [
        [{"role": "user", "content": "judge 2 + 2?: 4"}]
    ]  # fmt: skip
