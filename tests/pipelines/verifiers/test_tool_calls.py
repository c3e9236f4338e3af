"""Tool calls: ToolRL's formula on worked examples, forms of calls, what must not pay."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import verifiers

GOLD = json.dumps([{"name": "add", "arguments": {"x": 1, "y": 2}}, {"name": "show", "arguments": {}}])


def verdict(completion, answer=GOLD):
    return verifiers.verify("tool_calls", completion, answer, {})


def tagged(*calls):
    return "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


ADD = {"name": "add", "arguments": {"x": 1, "y": 2}}
SHOW = {"name": "show", "parameters": {}}


@pytest.mark.parametrize(
    "completion",
    [
        tagged(ADD, SHOW),
        tagged(SHOW, ADD),
        f"<tool_call>{json.dumps(ADD)}\n{json.dumps(SHOW)}</tool_call>",
        GOLD,
        f"```json\n{GOLD}\n```",
        "<think>" + tagged({"name": "x", "arguments": {}}) + "</think>" + tagged(ADD, SHOW),
        tagged({"type": "function", "function": {"name": "add", "arguments": '{"x": 1.0, "y": 2}'}}, SHOW),
    ],
)
def test_forms_of_the_same_calls(completion):
    assert verdict(completion).status == "correct"


@pytest.mark.parametrize(
    "calls, share",
    [
        ([ADD], (0.5 + 1 + 2) / 5),  # 1 + |G| + keys of G = 1 + 2 + 2
        ([SHOW], (0.5 + 1 + 0) / 5),
        ([{"name": "add", "arguments": {"x": 1, "y": 3}}, SHOW], (1 + 2 + 1) / 5),
        ([{"name": "add", "arguments": {"x": 1}}, SHOW], (1 + 1.5 + 1) / 5),
        ([{"name": "add", "arguments": {"x": True, "y": "2"}}, SHOW], (1 + 2 + 0) / 5),
        ([ADD, SHOW, {"name": "other", "arguments": {}}], (2 / 3 + 2 + 2) / 5),
        ([ADD, ADD, SHOW], (2 / 3 + 2 + 2) / 5),
        ([{"name": "other", "arguments": {}}], 0.0),
    ],
)
def test_the_formula(calls, share):
    found = verdict(tagged(*calls))
    assert found.status == "incorrect" and found.score == pytest.approx(share)


@pytest.mark.parametrize(
    "completion",
    [
        "", "I would call add.", "<tool_call>{}</tool_call>", "<tool_call>[1]</tool_call>", tagged(ADD)[:-5],
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>', tagged(*[ADD] * 40),
        '<tool_call>{"name": "add", "arguments": {"x": 1, "x": 1, "y": 2}}</tool_call>', "[" * 100_000,
    ],
)  # fmt: skip
def test_what_are_no_calls(completion):
    assert verdict(completion).status == "unparsable"


def test_calls_that_differ_in_true_and_1_are_told_apart():
    one, true = ({"name": "f", "arguments": {"x": value}} for value in (1, True))
    assert verdict(tagged(one, true), json.dumps([true, one])).correct
    assert not verdict(tagged(one, one), json.dumps([true, one])).correct


def test_where_no_call_is_wanted():
    assert verdict("Just text.", "[]").correct
    assert verdict(tagged(ADD), "[]").score == 0.0
    assert verdict("x", "no json").score is None


def test_a_gold_call_that_fits_none_leaves_them_to_the_others():
    """`a` has no key of the first gold call; the second is all of it."""
    gold = json.dumps([{"name": "f", "arguments": {"q": 1}}, {"name": "f", "arguments": {"x": 1}}])
    found = verdict(tagged({"name": "f", "arguments": {"x": 1}}), gold)
    assert found.score == pytest.approx((1 / 2 + 1 + 1) / 5)


CALLS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("fg"), "arguments": st.dictionaries(st.sampled_from("xyz"), st.integers(0, 1))}
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=1000)
@given(CALLS, CALLS)
def test_the_released_matching(gold, predicted):
    """Gold calls in order, the first best call of the same name with anything in common; its parameters count as a multiset."""
    found, left = verdict(tagged(*predicted), json.dumps(gold)).score, list(range(len(predicted)))
    names = Counter(call["name"] for call in gold), Counter(call["name"] for call in predicted)
    total = (names[0] & names[1]).total() / (names[0] | names[1]).total()
    for call in gold:
        values = {}
        for at in left:
            own, wanted = predicted[at]["arguments"], call["arguments"]
            if predicted[at]["name"] == call["name"]:
                either = set(own) | set(wanted)
                share = len(set(own) & set(wanted)) / len(either) if either else 1.0
                values[at] = share + sum(own.get(key) == value for key, value in wanted.items())
        best = max(values, key=lambda at: (values[at], -at), default=None)
        if best is not None and values[best] > 0:
            total += values[best]
            left.remove(best)
    released = total / (1 + sum(1 + len(call["arguments"]) for call in gold))
    assert found == pytest.approx(released, abs=2e-6)
