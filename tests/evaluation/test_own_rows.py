"""Rows of a benchmark from a file of the user's: in every form, with file, row and column of every fault."""

from __future__ import annotations

import json

import pytest

from evaluation import own_rows
from pipelines.base.errors import DataError

COLUMNS = {"id": str, "n": (int, float)}
ROWS = [{"id": "a", "n": 1}, {"id": "b", "n": 2.5}]


def read(path):
    return [row for _, row in own_rows.rows(path, COLUMNS)]


def test_json_lines_json_and_parquet_have_the_same_rows(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    for name, text in [
        ("a.jsonl", lines),
        ("lines.json", lines),
        ("list.json", json.dumps(ROWS)),
        ("pretty.json", json.dumps({"rows": ROWS}, indent=1)),
    ]:
        (tmp_path / name).write_text(text)
        assert read(tmp_path / name) == ROWS, name
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert read(str(tmp_path / "*.parquet")) == ROWS


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"id": "a", "n": 1}\n{"id": "b"}\n', r"a.jsonl:2: n: is missing \(the row has id\)"),
        ('{"id": "a", "n": "1"}\n', r"a.jsonl:1: n: is str, not int or float"),
        ('{"id": "a", "n": 1}\n\n{"id": \n', r"a.jsonl:3: row: "),
        ("[1]\n", r"a.jsonl:1: row: "),
        ("", r"a.jsonl: it is empty"),
    ],
)
def test_a_fault_has_its_place(tmp_path, text, told):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=told):
        read(tmp_path / "a.jsonl")


def test_a_file_that_is_none_or_several(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(json.dumps(ROWS[0]) + "\n")
    (tmp_path / "a.txt").write_text("x")
    for path, told in [
        ("c.jsonl", "no file, or several"),
        ("*.jsonl", "no file, or several"),
        ("a.txt", "its ending is none that is read"),
    ]:
        with pytest.raises(DataError, match=told) as refused:
            read(tmp_path / path)
        assert "sources.path" not in str(refused.value), "no field of another section"
