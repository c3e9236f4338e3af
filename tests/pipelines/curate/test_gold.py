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
        row("verdicts", [True, False]),
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


def searching(**changes):
    row = {"prompt": "and its age?", "answer": "bela museum opened", "verifier": "retrieval"}
    source = {"kind": "file", "path": "x", "corpus": "generated:places"}
    row, source = row | changes.pop("row", {}), source | changes
    return to_problem(row, Source(**source), self_check=True)


def test_a_file_s_rows_search_the_corpus_of_their_source():
    pytest.importorskip("bm25s")
    assert searching().info["corpus"] == "generated:places"
    box = {"answer": "a", "verifier": "exact", "info": {"toolbox": ["search", {"kind": "search", "results": 1}]}}
    with pytest.raises(RowError, match="two tools are called 'search'"):
        searching(row=box)
    box["info"]["toolbox"].pop()
    assert searching(row=box).info["toolbox"] == [{"kind": "search", "corpus": "generated:places"}]
    box["info"]["toolbox"] = [{"kind": "search", "corpus": "/etc/hostname"}]
    for refused in (box, {"info": {"corpus": "/etc/hostname"}}):
        with pytest.raises(RowError, match="give it as `corpus` of the source"):
            searching(row=refused)
    with pytest.raises(RowError, match="give it as `corpus` of the source"):
        searching(corpus=None)


def test_a_gold_passage_that_the_corpus_lacks_is_quarantined(tmp_path):
    pytest.importorskip("bm25s")
    with pytest.raises(RowError, match="the corpus has no document 'bela opera'"):
        searching(row={"answer": "bela opera"})
    with pytest.raises(RowError, match="no corpus at"):
        searching(corpus=str(tmp_path / "none.txt"))
