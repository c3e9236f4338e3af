"""Every verifier has a test of its own, passes it, and a broken one is refused."""

from __future__ import annotations

import sys
import types

import pytest

from pipelines import verifiers
from pipelines.base import plugins
from pipelines.verifiers import Verdict, known
from pipelines.verifiers import _self_test as self_test
from pipelines.verifiers._examples import KINDS, examples_of


@pytest.mark.parametrize("name", known())
def test_a_verifier_passes_its_own_test(name):
    assert {example.kind for example in examples_of(name)} == set(KINDS)
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
    for example in examples_of(name):
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
        ("verdicts", "[1, 0]", {}, "a list of true and false"),
    ],
)
def test_what_a_recipe_gives_a_verifier_is_tried(name, answer, info, said):
    assert said in verifiers.fault(name, answer, info)


def test_what_only_an_answer_can_show_is_left_to_the_records():
    assert verifiers.fault("grades", None, {"low": 3}) == ""


VERIFIER = """
from pipelines.verifiers import correct_or_incorrect

def verify(completion, answer, info):
    return correct_or_incorrect(completion == answer or info["generous"])
"""
ROWS = """
EXAMPLES = (("gold", "a", "a", {"generous": False}), ("junk", "b", "a", {"generous": %s}))
"""


@pytest.mark.parametrize(("rows", "refused"), [("", False), (ROWS % False, False), (ROWS % True, True)])
def test_a_verifier_of_a_plug_in_brings_its_own_rows_or_none(monkeypatch, rows, refused):
    module = types.ModuleType("brought_verifier")
    exec(VERIFIER + rows, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    origin = plugins.Origin("brought", module.__name__, "")
    monkeypatch.setattr(plugins, "origins", lambda: {verifiers.SLOT: {"brought": origin}})
    verifiers.load.cache_clear()
    if refused:
        with pytest.raises(self_test.VerifierError, match="brought fails its own test: it calls the junk"):
            self_test.require.__wrapped__("brought")
    else:
        self_test.require.__wrapped__("brought")
    assert verifiers.fault("brought", "a", {}) == ""
    verifiers.load.cache_clear()
