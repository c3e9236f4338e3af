"""Matching of calls: the sheet's numbers, bounds, and the assignment that is best."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.papers.matchtir.tool_matching import rewards, set_f1, similarity, transport

CALL = st.tuples(
    st.sampled_from(["search", "Search", "calc"]),
    st.dictionaries(st.sampled_from("qkx"), st.integers(0, 2), max_size=3),
)
CALLS = st.lists(CALL, max_size=4)
PREDICTED = [("search", {"q": "a", "k": 3}), ("search", {"q": "b"}), ("calc", {"x": 1})]
REFERENCES = [("search", {"q": "b", "k": 3}), ("calc", {"x": 1})]


def test_the_sheet_s_numbers():
    assert [similarity(p, r) for p in PREDICTED for r in REFERENCES] == [0.75, 0, 0.625, 0, 0, 1]
    assert rewards(PREDICTED, REFERENCES, "greedy") == rewards(PREDICTED, REFERENCES) == [0.75, 0, 1]
    assert rewards(PREDICTED, REFERENCES, "soft") == pytest.approx([0.215199, 0.133168, 0.333333], abs=1e-5)


def test_greedy_is_not_the_best_assignment(monkeypatch):
    scores = {("a", "x"): 0.9, ("a", "y"): 0.8, ("b", "x"): 0.8, ("b", "y"): 0.1}
    monkeypatch.setattr("pipelines.papers.matchtir.tool_matching.similarity", lambda p, r: scores[p[0], r[0]])
    predicted, references = [("a", {}), ("b", {})], [("x", {}), ("y", {})]
    assert rewards(predicted, references, "greedy") == pytest.approx([0.9, 0.1])
    assert rewards(predicted, references) == pytest.approx([0.8, 0.8])


@given(CALL, CALL)
def test_similarity_is_1_only_for_equal_calls(predicted, reference):
    value = similarity(predicted, reference)
    assert 0 <= value <= 1
    assert (value == 1) == (predicted[0].lower() == reference[0].lower() and predicted[1] == reference[1])


@given(CALLS, CALLS)
def test_laws_of_the_matchings(predicted, references):
    best, greedy, soft = (rewards(predicted, references, how) for how in ("optimal", "greedy", "soft"))
    for paid in (best, greedy):
        assert len(paid) == len(predicted) and sum(value > 0 for value in paid) <= min(len(predicted), len(references))
    assert sum(best) >= sum(greedy) - 1e-9
    highest = max((similarity(p, r) for p in predicted for r in references), default=0.0)
    assert -1e-9 <= sum(soft) <= highest + 1e-9


def test_a_plan_has_equal_masses():
    import numpy

    plan = transport(numpy.array([[0.75, 0], [0.625, 0], [0, 1.0]]))
    assert plan.sum(1) == pytest.approx([1 / 3] * 3) and plan.sum(0) == pytest.approx([0.5, 0.5])


def test_set_f1():
    assert set_f1("42 42", "42") == 1 and set_f1("", "42") == 0 and set_f1("a b", "b c") == 0.5
    assert set_f1("It is Paris.", "paris") == 0.5 and set_f1("(Rock-n-Roll!)", "rock n roll") == 1
    assert set_f1("...", "?!") == 0
