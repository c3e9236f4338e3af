"""A test that each verifier passes before a run may use it: gold, junk, nothing, several hedged answers, a bomb.

It asks of the libraries installed here what the test suite asked of the pinned ones.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from pipelines.errors import UserError
from pipelines.verifiers import verify_many

KINDS = ("gold", "junk", "empty", "hedged", "bomb")


class Example(NamedTuple):
    """A row, and whether it is correct."""

    kind: str
    completion: str
    answer: str
    info: dict[str, Any] = {}  # noqa: RUF012  (nobody writes to it)


class VerifierError(UserError):
    """A verifier fails its own test here."""


_PYTHON = {"entry_point": "f", "timeout_s": 1, "cases": [{"args": [3], "expected": 9}, {"args": [-2], "expected": 4}]}
_SQL = {"schema": "create table t(a); insert into t values (1), (2);"}
_SCHEMA = {
    "schema": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "pattern": "^(b+)+$"}}}
}
_CALL = '[{"name": "add", "arguments": {"x": 1, "y": [2]}}]'
_TWO = '<tool_call>{"name": "add", "arguments": {"x": 1, "y": [2]}}</tool_call>'
_ORDERS = {"instructions": [{"id": "punctuation:no_comma"}, {"id": "keywords:existence", "keywords": ["yes"]}]}
_GYM = {"task": "game_of_life_halting"}

EXAMPLES: dict[str, tuple[Example, ...]] = {
    "choice": (
        Example("gold", "The answer is (B).", "B"),
        Example("junk", "I do not know.", "B"),
        Example("empty", "", "B"),
        Example("hedged", "The answer is A or B.", "B"),
        Example("bomb", "A or " * 20_000, "B"),
    ),
    "exact": (
        Example("gold", " a  b ", "a b"),
        Example("junk", "c", "a b"),
        Example("empty", "", "a b"),
        Example("hedged", "a b or c", "a b"),
        Example("bomb", " a" * 100_000, "a b"),
    ),
    "instructions": (
        Example("gold", "Well yes.", "", _ORDERS),
        Example("junk", "No, no.", "", _ORDERS),
        Example("empty", "", "", _ORDERS),
        Example("hedged", "yes, or no", "", _ORDERS),
        Example("bomb", "*[<<," * 20_000, "", _ORDERS),
    ),
    "json_schema": (
        Example("gold", '```json\n{"a": "bb"}\n```', "", _SCHEMA),
        Example("junk", '{"a": 1}', "", _SCHEMA),
        Example("empty", "", "", _SCHEMA),
        Example("hedged", '{"a": "b", "a": 1}', "", _SCHEMA),
        Example("bomb", "[" * 100_000, "", _SCHEMA),
    ),
    "math": (
        Example("gold", r"so \boxed{\frac{x}{2}}", "x/2"),
        Example("junk", "who knows", "x/2"),
        Example("empty", "", "7"),
        Example("hedged", "The answer is 3, 4 or 5.", "3"),
        Example("bomb", "$10^{10^{10}}$", "7"),
    ),
    "number": (
        Example("gold", "#### 1,007.0", "1007"),
        Example("junk", "none", "7"),
        Example("empty", "", "7"),
        Example("hedged", "#### 3 or 7", "7"),
        Example("bomb", "<answer>" * 20_000, "7"),
    ),
    "overlap": (
        Example("gold", "<answer>the cat, the dog</answer>", '["the cat", "the dog"]', {"metric": "pair_order"}),
        Example("junk", "a stone", "the cat", {"metric": "em"}),
        Example("empty", "", "the cat", {"metric": "f1"}),
        Example("hedged", "a dog or a cow or a pig or a hen or a fox or a cat or a goat", "cat", {"metric": "sub_em"}),
        Example("bomb", "a b " * 50_000, "c d", {"metric": "rouge_l"}),
    ),
    "python": (
        Example("gold", "```python\ndef f(x):\n    return x * x\n```", "", _PYTHON),
        Example("junk", "no code here", "", _PYTHON),
        Example("empty", "", "", _PYTHON),
        Example("hedged", "def f(x): return [9, 4]", "", _PYTHON),
        Example("bomb", "import os\nwhile True: os.fork()", "", _PYTHON),
    ),
    "reasoning_gym": (
        Example("gold", "yes", "True", _GYM),
        Example("junk", "who knows", "True", _GYM),
        Example("empty", "", "True", _GYM),
        Example("hedged", "yes or no", "True", _GYM),
        Example("bomb", "(" * 20_000, "True", _GYM),
    ),
    "regex": (
        Example("gold", "<a>7</a>\n", r"<a>\d+</a>"),
        Example("junk", "<b>7</b>", r"<a>\d+</a>"),
        Example("empty", "", r"<a>\d+</a>"),
        Example("hedged", "<a>7</a> <a>8</a>", r"<a>\d+</a>"),
        Example("bomb", "a" * 60 + "b", r"(a+)+"),
    ),
    "sql": (
        Example("gold", "```sql\nSELECT a FROM t;\n```", "SELECT a FROM t", _SQL),
        Example("junk", "DROP TABLE t", "SELECT a FROM t", _SQL),
        Example("empty", "", "SELECT a FROM t", _SQL),
        Example("hedged", "SELECT a FROM t; SELECT 1", "SELECT a FROM t", _SQL),
        Example("bomb", "SELECT count(*) FROM t" + ", t" * 40, "SELECT a FROM t", _SQL),
    ),
    "tool_calls": (
        Example("gold", _TWO, _CALL),
        Example("junk", "I call add.", _CALL),
        Example("empty", "", _CALL),
        Example("hedged", _TWO + _TWO, _CALL),
        Example("bomb", "<tool_call>" * 20_000, _CALL),
    ),
}


@cache
def require(name: str) -> None:
    """Run a verifier on its examples.

    Raises:
        VerifierError: one comes out otherwise than it must.
    """
    examples = EXAMPLES[name]
    verdicts = verify_many([(name, e.completion, e.answer, e.info) for e in examples])
    for example, verdict in zip(examples, verdicts, strict=True):
        if verdict.correct is not (example.kind == "gold"):
            raise VerifierError(
                f"the verifier {name} fails its own test: it calls the {example.kind} example {verdict.status} "
                f"{dict(verdict.components) or ''}. Install the versions of constraints.txt, or choose another verifier."
            )
