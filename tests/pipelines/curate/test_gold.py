"""What stands for the gold answer of a row whose answer is no completion: tests, a pattern, a schema."""

from __future__ import annotations

import json

import pytest

from pipelines.curate.mapping import to_problem
from pipelines.curate.values import RowError
from pipelines.recipe.settings import Source

FILE = Source(kind="file", path="x.jsonl")
TESTS = {"entry_point": "f", "cases": [{"args": [1], "expected": 1}]}


def row(verifier, answer, **info):
    return {"prompt": "p", "verifier": verifier, "answer": answer, "info": info}


@pytest.mark.parametrize(
    "columns",
    [
        row("python", "def f(x): return x", **TESTS),
        row("python", json.dumps(TESTS)),
        row("regex", r"\d+"),
        row("regex", r"\d+", example="12"),
        row("json_schema", "1", schema={"type": "integer"}),
        row("instructions", "none", instructions=[{"id": "punctuation:no_comma"}]),
        row("tool_calls", '[{"name": "f", "arguments": {}}]'),
    ],
    ids=lambda columns: columns["verifier"],
)
def test_rows_that_are_kept(columns):
    assert to_problem(columns, FILE, self_check=True).verifier == columns["verifier"]


@pytest.mark.parametrize(
    "columns",
    [
        row("python", "def f(x): return 2", **TESTS),
        row("python", json.dumps({"entry_point": "f", "cases": []})),
        row("regex", r"\d+", example="x"),
        row("regex", "("),
        row("json_schema", '"x"', schema={"type": "integer"}),
        row("instructions", "none", instructions=[{"id": "unknown"}]),
    ],
    ids=lambda columns: columns["verifier"],
)
def test_rows_that_are_quarantined(columns):
    with pytest.raises(RowError, match="does not verify itself"):
        to_problem(columns, FILE, self_check=True)
