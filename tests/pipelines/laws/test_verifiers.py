"""The laws of verifiers notice what is wrong, and hold for those of the project that run in the stage's process."""

from __future__ import annotations

import plugin_toys
import pytest

from pipelines.base import plugins
from pipelines.laws import attempt, verifiers
from pipelines.verifiers import BATCHED, POOLED, VERIFIERS

TEXT = """
import itertools
import sys
from pipelines.verifiers import Verdict, correct_or_incorrect
count = itertools.count()
EXAMPLES = [{examples}]

def verify(completion, answer, info):
    {body}

PARTS = {{"verifiers": {{"of_a_test": sys.modules[__name__]}}}}
"""
RIGHT = "return correct_or_incorrect(completion == answer)"
GOLD, JUNK = "('gold', 'a', 'a', {})", "('junk', 'b', 'a', {})"


@pytest.mark.parametrize(
    ("body", "examples", "broken"),
    [
        (RIGHT, "", set()),
        (RIGHT, f"{GOLD}, {JUNK}", set()),
        (RIGHT.replace("==", "!="), f"{GOLD}, {JUNK}", {"examples-are-judged-as-they-say"}),
        ("return completion == answer", "", {"any-text-gets-a-verdict"}),
        ("return Verdict(float('inf'), 'correct')", "", {"any-text-gets-a-verdict"}),
        ("int(completion); " + RIGHT, "", {"any-text-gets-a-verdict", "equal-answers-get-equal-verdicts"}),
        ("return Verdict(float(next(count)), 'correct')", "", {"equal-answers-get-equal-verdicts"}),
        ("int(answer); " + RIGHT, "", set()),  # a gold answer may be refused
    ],
)
def test_a_fault_breaks_its_law(tmp_path, body, examples, broken):
    (tmp_path / "plug.py").write_text(TEXT.format(body=body, examples=examples))
    with plugin_toys.forgotten():
        plugins.activate([str(tmp_path / "plug.py")])
        outcomes = [*attempt(verifiers.LAWS, "of_a_test")]
    assert {each.law for each in outcomes if each.result == "broken"} == broken


def test_one_that_refuses_every_answer_is_not_judged(tmp_path):
    (tmp_path / "plug.py").write_text(TEXT.format(body="raise KeyError('gold')", examples=""))
    with plugin_toys.forgotten():
        plugins.activate([str(tmp_path / "plug.py")])
        assert {each.result for each in attempt(verifiers.LAWS, "of_a_test")} == {"not applicable"}


@pytest.mark.parametrize("name", sorted({*VERIFIERS} - {*POOLED} - {*BATCHED}))
def test_the_project_s_own(name):
    assert [each for each in attempt(verifiers.LAWS, name) if each.result == "broken"] == []
