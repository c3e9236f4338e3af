"""Calls against allowed values: cases whose verdicts are those of BFCL's own `ast_checker.py` (gorilla at 6ea5797)."""

from __future__ import annotations

import pytest

from pipelines import verifiers
from pipelines.verifiers import _allowed_calls as allowed_calls

TYPES = {
    "n": {"type": "integer"}, "x": {"type": "float"}, "s": {"type": "string"}, "b": {"type": "boolean"}, "a": {"type": "any"},
    "ns": {"type": "array", "items": {"type": "integer"}}, "xs": {"type": "array", "items": {"type": "float"}},
    "ss": {"type": "array", "items": {"type": "string"}}, "pair": {"type": "tuple", "items": {"type": "integer"}},
    "d": {"type": "dict"}, "ds": {"type": "array", "items": {"type": "dict"}},
}  # fmt: skip


def function(name="f", required=()):
    return {"name": name, "parameters": {"type": "dict", "properties": TYPES, "required": list(required)}}


def fits(given, allowed, required=()):
    return allowed_calls.match([function(required=required)], [("f", given)], [{"f": allowed}])


@pytest.mark.parametrize(
    ("given", "allowed", "valid"),
    [
        ({"n": 3}, {"n": [3]}, True), ({"n": 3.0}, {"n": [3]}, False), ({"n": True}, {"n": [1]}, False),
        ({"n": "3"}, {"n": [3]}, False), ({"x": 3}, {"x": [3.0]}, True), ({"x": 3}, {"x": [3]}, True), ({"x": 3.5}, {"x": [3]}, False),
        ({"x": "3"}, {"x": [3.0]}, False), ({"b": True}, {"b": [True]}, True), ({"b": 1}, {"b": [True]}, False),
        ({"b": "true"}, {"b": [True]}, False), ({"s": "April 1, 2024"}, {"s": ["april 1 2024"]}, True),
        ({"s": "it's"}, {"s": ['IT"S']}, True), ({"s": "a b"}, {"s": ["abc"]}, False), ({"s": "km/h"}, {"s": ["kmh"]}, True),
        ({"s": "a+b"}, {"s": ["ab"]}, False), ({"s": ""}, {"s": ["x", ""]}, True), ({}, {"n": [3, ""]}, True), ({}, {"n": [3]}, False),
        ({"n": 4}, {"n": [3, ""]}, False), ({"n": 3, "q": 1}, {"n": [3]}, False), ({"n": 3, "s": "x"}, {"n": [3]}, False),
        ({"n": "$count"}, {"n": ["$count"]}, True), ({"n": "$COUNT"}, {"n": ["$count"]}, False),
        ({"ns": [1, 2]}, {"ns": [[1, 2]]}, True), ({"ns": [2, 1]}, {"ns": [[1, 2]]}, False),
        ({"ns": [2, 1]}, {"ns": [[1, 2], [2, 1]]}, True), ({"xs": [1, 2]}, {"xs": [[1.0, 2.0]]}, False),
        ({"xs": [1, 2]}, {"xs": [[1, 2]]}, True), ({"xs": [1.0]}, {"xs": [[1]]}, True),
        ({"ss": ["A.", "b"]}, {"ss": [["a", "B"]]}, True), ({"ss": []}, {"ss": [["a"], ""]}, True),
        ({"ss": "a"}, {"ss": [["a"]]}, False), ({"pair": (1, 2)}, {"pair": [[1, 2]]}, True),
        ({"pair": [1, 2]}, {"pair": [[1, 2]]}, True), ({"d": {"k": "V"}}, {"d": [{"k": ["v"]}]}, True),
        ({"d": {}}, {"d": [{"k": ["v"]}]}, False), ({"d": {}}, {"d": [{"k": ["v", ""]}]}, True),
        ({"d": {"k": "v", "z": 1}}, {"d": [{"k": ["v"]}]}, False), ({"d": {"k": 1.0}}, {"d": [{"k": [1]}]}, True),
        ({"d": "v"}, {"d": ["v"]}, True), ({"ds": [{"k": 1}, {"k": 2}]}, {"ds": [[{"k": [1]}, {"k": [2]}]]}, True),
        ({"ds": [{"k": 2}, {"k": 1}]}, {"ds": [[{"k": [1]}, {"k": [2]}]]}, False),
        ({"ds": [{"k": 1}]}, {"ds": [[{"k": [1]}, {"k": [2]}]]}, False), ({"ds": []}, {"ds": [[{"k": [1]}], ""]}, True),
        ({"a": "x"}, {"a": ["X"]}, True), ({"a": 3}, {"a": [3]}, True), ({"a": 3}, {"a": ["3"]}, False),
        ({"n": None}, {"n": [3, ""]}, False),
    ],
)  # fmt: skip
def test_a_value(given, allowed, valid):
    assert fits(given, allowed) is valid


def test_required_parameters_and_names():
    assert not fits({}, {"n": [3, ""]}, required=["n"]) and fits({"n": 3}, {"n": [3, ""]}, required=["n"])
    assert not allowed_calls.match([function()], [("g", {"n": 3})], [{"f": {"n": [3]}}])
    assert not allowed_calls.match([function()], [("F", {"n": 3})], [{"f": {"n": [3]}}])


def test_calls_have_no_order_and_none_may_be_missing_or_more():
    functions, wanted = [function("f"), function("g")], [{"f": {"n": [1]}}, {"f": {"n": [2]}}, {"g": {"s": ["x", ""]}}]
    calls = [("g", {}), ("f", {"n": 2}), ("f", {"n": 1})]
    assert allowed_calls.match(functions, calls, wanted)
    assert not allowed_calls.match(functions, calls[1:], wanted) and not allowed_calls.match(
        functions, [*calls, ("g", {})], wanted
    )
    assert not allowed_calls.match(functions, [calls[0], calls[1], calls[1]], wanted)
    greedy = [{"f": {"n": [1, 2]}}, {"f": {"n": [1]}}]
    assert not allowed_calls.match(functions, [("f", {"n": 1}), ("f", {"n": 2})], greedy), (
        "the first that fits is taken, as there"
    )


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("f(n=1)", [("f", {"n": 1})]), ("[f(n=-1), a.b.c(x=2.5e3)]", [("f", {"n": -1}), ("a.b.c", {"x": 2500.0})]),
        ("```[f(s='a', b=True, d={'k': [1, None]})]```", [("f", {"s": "a", "b": True, "d": {"k": [1, None]}})]),
        ("[f(n=3*4, x=1/2)]", [("f", {"n": 12, "x": 0.5})]), ("f(s=word, ss=(1, 2))", [("f", {"s": "word", "ss": (1, 2)})]),
        ("[f(s=g(), d=h(k=1), a=x[0])]", [("f", {"s": "g()", "d": {"h": {"k": 1}}, "a": "x[0]"})]), ("[]", []), ("f(3)", [("f", {})]),
    ],
)  # fmt: skip
def test_calls_in_text(text, calls):
    assert allowed_calls.python_calls(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "I cannot.", "[f(n=1), 3]", "f(n=", "[" * 9999, "f(n=" + "1+" * 40_000 + "1)", "f(n=1/0)", "f(n=lambda: 0)", "f(d={[]: 1})",
        "f(n=" + "9" * 5000 + ")", "x" * 200_000,
    ],
)  # fmt: skip
def test_other_texts_have_none_and_cost_nothing(text):
    with pytest.raises(ValueError):
        allowed_calls.python_calls(text)


def test_the_verifier_judges_by_allowed_values():
    info = {"functions": [function()], "possible_answer": [{"f": {"n": [3, 4]}}]}
    tag = '<tool_call>{"name": "f", "arguments": {"n": %s}}</tool_call>'

    def status(text, **more):
        return verifiers.verify("tool_calls", text, "[]", info | more).status

    assert [status(tag % n) for n in (3, 4, 5)] == ["correct", "correct", "incorrect"]
    assert status("<tool_call>{</tool_call>") == "unparsable" and status("No.") == "incorrect"
    assert status("[f(n=3)]", format="python") == "correct" and status(tag % 3, format="python") == "unparsable"
    assert status("No.", possible_answer=[]) == "correct" and status(tag % 3, possible_answer=[]) == "incorrect"
    assert (
        status(tag % 9, possible_answer=[], any_call=True) == "correct"
        and status("No.", possible_answer=[], any_call=True) == "incorrect"
    )
