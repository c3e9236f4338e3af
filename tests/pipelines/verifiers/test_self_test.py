"""Every verifier has a test of its own, passes it, and a broken one is refused."""

from __future__ import annotations

import pytest

from pipelines import verifiers
from pipelines.verifiers import Verdict, known
from pipelines.verifiers import _self_test as self_test
from pipelines.verifiers._examples import EXAMPLES, KINDS


@pytest.mark.parametrize("name", known())
def test_a_verifier_passes_its_own_test(name):
    assert {example.kind for example in EXAMPLES[name]} == set(KINDS)
    self_test.require(name)


def test_a_verifier_that_pays_junk_is_refused(monkeypatch):
    generous = Verdict(1.0, "correct")
    monkeypatch.setattr(self_test, "verify_many", lambda rows: [generous] * len(rows))
    with pytest.raises(self_test.VerifierError, match="exact fails its own test: it calls the junk"):
        self_test.require.__wrapped__("exact")


def test_a_hedged_choice_with_a_is_several():
    for text in ("The answer is A or B.", "The answer is either A or B.", "It could be A or B"):
        assert verifiers.verify("choice", text, "B", {}).status == "incorrect"


@pytest.mark.parametrize("name", known())
def test_no_fault_is_found_with_rows_that_are_whole(name):
    for example in EXAMPLES[name]:
        assert verifiers.fault(name, example.answer, example.info) == ""


@pytest.mark.parametrize(
    ("name", "answer", "info", "said"),
    [
        ("regex", "(a", {}, "unterminated subpattern"),
        ("regex", None, {"pattern": "[a"}, "unterminated character set"),
        ("regex", "a", {"mode": "full"}, "'full' is neither fullmatch nor search"),
        ("regex", "a", {"flags": "q"}, "flags 'q' are not letters of imsx"),
        ("overlap", None, {"metric": "bleu"}, "metric 'bleu' is none of em, sub_em"),
        ("overlap", None, {"threshold": 2}, "threshold is over 0 and at most 1"),
        ("json_schema", "{", {}, "Expecting property name"),
        ("json_schema", None, {"schema": {"type": "objekt"}}, "'objekt' is not valid"),
        ("staged", None, {"weights": [1, 1]}, "weights are five numbers"),
        ("staged", None, {"hard": [{"path": "a", "at_lest": 1}]}, "no other keys than"),
        ("instructions", None, {"instructions": [{"id": "no:such"}]}, "no instruction 'no:such'"),
        ("semantic", None, {"floor": 1}, "floor is from -1 to below 1"),
        ("grades", "[4, 2]", {"part": "half"}, "could not convert string to float"),
        ("grades", "[4, 2]", {"low": 3}, "two grades in the range"),
    ],
)
def test_what_a_recipe_gives_a_verifier_is_tried(name, answer, info, said):
    assert said in verifiers.fault(name, answer, info)


def test_what_only_an_answer_can_show_is_left_to_the_records():
    assert verifiers.fault("grades", None, {"low": 3}) == ""
