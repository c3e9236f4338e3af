"""Rows on which each verifier is tested before a run may use it: gold, junk, nothing, several hedged answers, a bomb."""

from __future__ import annotations

from typing import Any, NamedTuple

from pipelines.verifiers.registry import load

KINDS = ("gold", "junk", "empty", "hedged", "bomb")


class Example(NamedTuple):
    """A row, and whether it is correct."""

    kind: str
    completion: str
    answer: str
    info: dict[str, Any] = {}  # noqa: RUF012  (nobody writes to it)


_PYTHON = {"entry_point": "f", "timeout_s": 1, "cases": [{"args": [3], "expected": 9}, {"args": [-2], "expected": 4}]}
_CAP = {"construction": {"kind": "cap_set", "dimension": 2}, "timeout_s": 1}
_SQL = {"schema": "create table t(a); insert into t values (1), (2);"}
_SCHEMA = {
    "schema": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "pattern": "^(b+)+$"}}}
}
_CALL = '[{"name": "add", "arguments": {"x": 1, "y": [2]}}]'
_TWO = '<tool_call>{"name": "add", "arguments": {"x": 1, "y": [2]}}</tool_call>'
_ORDERS = {"instructions": [{"id": "punctuation:no_comma"}, {"id": "keywords:existence", "keywords": ["yes"]}]}
_NEAR = {"encoder": "tiny random encoder", "threshold": 0.99}
_PLAN = {
    "schema": {"type": "object", "required": ["costs"], "properties": {"costs": {"type": "array"}}},
    "soft": [{"path": "costs", "of": "count", "at_least": 1}, {"path": "costs.*", "of": "count", "at_least": 2}],
    "hard": [{"path": "costs.*", "of": "sum", "at_most": 9}, {"verifier": "regex", "answer": r"(?s)\{.*\}"}],
}
_GYM = {"task": "game_of_life_halting"}


def _examples(answer: str, info: dict[str, Any], **texts: str | Example) -> tuple[Example, ...]:
    """Rows with one answer, one of each kind; a kind that needs another answer or info brings a row of its own."""
    rows = [(kind, texts.get(kind, "")) for kind in KINDS]
    return tuple(t if isinstance(t, Example) else Example(kind, t, answer, info) for kind, t in rows)


EXAMPLES: dict[str, tuple[Example, ...]] = {
    "choice": _examples(
        "B", {}, gold="The answer is (B).", junk="I do not know.", hedged="The answer is A or B.", bomb="A or " * 20_000
    ),
    "construction": _examples(
        "4",
        _CAP,
        gold="```python\ndef construct():\n    return [[0, 0], [0, 1], [1, 0], [1, 1]]\n```",
        junk="def construct(): return 4",
        hedged="def construct(): return [[a, b] for a in range(3) for b in range(3)]",
        bomb="def construct():\n    while True: pass",
    ),
    "exact": _examples("a b", {}, gold=" a  b ", junk="c", hedged="a b or c", bomb=" a" * 100_000),
    "grades": _examples(
        "[4, 2]",
        {},
        gold="Well.\nFirst: 4\nSecond: 2",
        junk="good",
        hedged="First: 4\nFirst: 5\nSecond: 2",
        bomb="First: " * 20_000 + "\n" * 20_000,
    ),
    "grounding": _examples(
        "[10, 10, 30, 30]",
        {"metric": "iou"},
        gold='```json\n[{"bbox_2d": [10, 10, 30, 29], "label": "a dog"}]\n```',
        junk="in the upper left",
        hedged="[10, 10, 30, 30] or [0, 0, 9, 9]",
        bomb="[1, 2, 3, " * 20_000,
    ),
    "instructions": _examples(
        "", _ORDERS, gold="Well yes.", junk="No, no.", hedged="yes, or no", bomb="*[<<," * 20_000
    ),
    "json_schema": _examples(
        "", _SCHEMA, gold='```json\n{"a": "bb"}\n```', junk='{"a": 1}', hedged='{"a": "b", "a": 1}', bomb="[" * 100_000
    ),
    "math": _examples(
        "7",
        {},
        gold=Example("gold", r"so \boxed{\frac{x}{2}}", "x/2"),
        junk=Example("junk", "who knows", "x/2"),
        hedged=Example("hedged", "The answer is 3, 4 or 5.", "3"),
        bomb="$10^{10^{10}}$",
    ),
    "number": _examples(
        "7",
        {},
        gold=Example("gold", "#### 1,007.0", "1007"),
        junk="none",
        hedged="#### 3 or 7",
        bomb="<answer>" * 20_000,
    ),
    "overlap": _examples(
        "the cat",
        {"metric": "f1"},
        gold=Example("gold", "<answer>the cat, the dog</answer>", '["the cat", "the dog"]', {"metric": "pair_order"}),
        junk=Example("junk", "a stone", "the cat", {"metric": "em"}),
        hedged=Example(
            "hedged", "a dog or a cow or a pig or a hen or a fox or a cat or a goat", "cat", {"metric": "sub_em"}
        ),
        bomb=Example("bomb", "a b " * 50_000, "c d", {"metric": "rouge_l"}),
    ),
    "python": _examples(
        "",
        _PYTHON,
        gold="```python\ndef f(x):\n    return x * x\n```",
        junk="no code here",
        hedged="def f(x): return [9, 4]",
        bomb="import os\nwhile True: os.fork()",
    ),
    "reasoning_gym": _examples("True", _GYM, gold="yes", junk="who knows", hedged="yes or no", bomb="(" * 20_000),
    "regex": _examples(
        r"<a>\d+</a>",
        {},
        gold="<a>7</a>\n",
        junk="<b>7</b>",
        hedged="<a>7</a> <a>8</a>",
        bomb=Example("bomb", "a" * 60 + "b", r"(a+)+"),
    ),
    "retrieval": _examples(
        "bela museum opened",
        {"corpus": "generated:places", "within": 1},
        gold="<think>it is the bela museum</think>\n<rewrite>bela museum opened</rewrite>",
        junk="<think></think>\n<rewrite>who knows</rewrite>",
        hedged="<think></think>\n<rewrite>bela museum opened</rewrite>\n<rewrite>bela museum costs</rewrite>",
        bomb="<think></think>\n<rewrite>" + "bela museum opened " * 20_000 + "</rewrite>",
    ),
    "semantic": _examples(
        "the cat sat", _NEAR, gold=" the cat sat", junk="9!", hedged="9! 8? 7; 6: 5, 4 3 2 1", bomb="xyz " * 20_000
    ),
    "sql": _examples(
        "SELECT a FROM t",
        _SQL,
        gold="```sql\nSELECT a FROM t;\n```",
        junk="DROP TABLE t",
        hedged="SELECT a FROM t; SELECT 1",
        bomb="SELECT count(*) FROM t" + ", t" * 40,
    ),
    "staged": _examples(
        "",
        _PLAN,
        gold='{"costs": [4, 5]}',
        junk="a plan",
        hedged='{"costs": [4, 5]} {"costs": [1, 1]}',
        bomb='{"costs": ' + "[" * 5_000,
    ),
    "tool_calls": _examples(_CALL, {}, gold=_TWO, junk="I call add.", hedged=_TWO + _TWO, bomb="<tool_call>" * 20_000),
    "tool_format": _examples(
        _CALL,
        {},
        gold=f"<think>I add.</think>\n<tool_call>\n{_CALL}\n</tool_call>",
        junk="<think>I call add.</think>",
        hedged=f"<think>I add.</think>\n<tool_call>\n{_CALL}\n</tool_call>\n<response>3</response>",
        bomb="<think></think>\n" * 20_000 + "<tool_call>\n" * 20_000,
    ),
    "verdicts": _examples(
        "[true, false]",
        {},
        gold="Well.\n1: yes\n2: no",
        junk="all criteria are met",
        hedged="1: yes\n2: no\n2: yes",
        bomb="1: yes\n" * 20_000 + "1: " * 20_000,
    ),
}


def examples_of(name: str) -> tuple[Example, ...]:
    """The rows that a verifier is tested on: those of this file, or of a plug-in's module (`EXAMPLES`: kind, completion, answer, info)."""
    return EXAMPLES.get(name) or tuple(Example(*row) for row in getattr(load(name), "EXAMPLES", ()))
