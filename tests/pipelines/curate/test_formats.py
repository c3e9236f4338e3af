"""Formats agree: the same rows through every ending, and one bad line changes no other row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.base.errors import DataError
from pipelines.curate.formats import ENDINGS, Limits, read_file
from pipelines.data.files import lines

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1)
ROWS = st.lists(st.fixed_dictionaries({"prompt": TEXT, "answer": TEXT}), min_size=1, max_size=5)


def write(path, rows):
    """The rows in the format of the path's ending."""
    ending = path.name.removeprefix("rows").removesuffix(".gz")
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    if ending == ".csv":
        plain = path.with_name("plain.csv")
        with open(plain, "w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, ["prompt", "answer"], quoting=csv.QUOTE_ALL, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        raw = plain.read_bytes()
    else:
        text = json.dumps(rows) if ending == ".json" else "\n".join(map(json.dumps, rows))
        raw = text.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


@pytest.mark.parametrize("ending", ENDINGS)
@given(rows=ROWS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_rows_come_back(ending, rows, tmp_path):
    if ending.startswith(".csv"):  # a lone carriage return at a line's end is a line end of Windows
        rows = [{key: text.replace("\r", "") or "x" for key, text in row.items()} for row in rows]
    path = tmp_path / f"rows{ending}"
    write(path, rows)
    assert [row.columns for row in read_file(path)] == rows


@given(good=ROWS, junk=st.binary(max_size=60), place=st.integers(0, 5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_junk_line_changes_no_other_row(good, junk, place, tmp_path):
    junk = junk.replace(b"\n", b"").removesuffix(b"\r")
    lines = [json.dumps(row).encode() for row in good]
    lines.insert(place, junk)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join([*lines, b""]))
    marks = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
    if place == 0 and junk.startswith(marks):
        return
    assert [row.columns for row in read_file(path) if row.columns is not None and row.columns in good] == good


@pytest.mark.parametrize(("length", "kept"), [(999, True), (1000, True), (1001, False), (1002, False), (5000, False)])
def test_the_longest_row_is_exact(length, kept, tmp_path):
    path = tmp_path / "rows.jsonl"
    row = json.dumps({"prompt": ""})[:-2]
    for end in (b"\n", b"\r\n"):
        line = (row + "a" * (length - len(row) - 2) + '"}').encode()
        assert len(line) == length
        path.write_bytes(line + end + b'{"prompt": "next"}' + end)
        first, second = read_file(path, limits=Limits(row_bytes=1000))
        assert (first.columns is not None) == kept
        assert second.columns == {"prompt": "next"} and second.number == 2
        assert kept or first.error.detail == f"{length:,} bytes, max_row_bytes is 1,000"


def test_a_long_line_is_never_held_whole():
    class Recorder(io.BytesIO):
        longest = 0

        def readline(self, size=-1):
            line = super().readline(size)
            self.longest = max(self.longest, len(line))
            return line

    handle = Recorder(b"a" * 2**21 + b"\nnext\n")
    assert [(number, len(line), length) for number, line, length in lines(handle, 1000)] == [
        (1, 1000, 2**21),
        (2, 4, 4),
    ]
    assert handle.longest <= 2**18


@pytest.mark.parametrize(
    "name, text",
    [("float32", "0.1"), ("float16", "0.1"), ("float64", "0.1"), ("float32", "1e-10"), ("float32", "16777216.0")],
)
def test_a_number_of_single_precision_is_its_shortest_decimal(tmp_path, name, text):
    value, kind = float(text), pa.type_for_alias(name)
    table = {
        "answer": pa.array([value, None], kind),
        "several": pa.array([[value, None], None], pa.list_(kind)),
        "info": pa.array([{"deep": [value]}, None], pa.struct([("deep", pa.list_(kind))])),
    }
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    first, second = (row.columns for row in read_file(tmp_path / "rows.parquet"))
    assert (
        str(first["answer"]) == str(value) and first["several"] == [value, None] and first["info"] == {"deep": [value]}
    )
    assert second == {"answer": None, "several": None, "info": None}


def test_the_columns_of_a_wide_file_are_compared_in_one_pass(tmp_path):
    """100,000 names, of which the last comes twice: comparing each with all before took a minute."""
    names = [f"c{number}" for number in range(100_000)]
    path = tmp_path / "wide.csv"
    path.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    began = time.process_time()
    (row,) = read_file(path)
    path.write_text(",".join([*names, names[-1]]) + "\n")
    with pytest.raises(DataError, match="the column 'c99999' stands twice"):
        list(read_file(path))
    path = tmp_path / "wide.jsonl"
    path.write_text("{" + ", ".join(f'"{name}": 1' for name in [*names, names[-1]]) + "}\n")
    (twice,) = read_file(path)
    assert time.process_time() - began < 15
    assert len(row.columns) == 100_000 and str(twice.error) == "c99999: the key stands twice in one object"
