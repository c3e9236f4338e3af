"""Hostile data: every row and file of the tables below has one exact outcome, and never a traceback or a hang.

`whetstone` must say for each row: accepted with this text, or quarantined with this field and reason. A file that
cannot be read is one DataError line with its path.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import gzip
import json
import os
import socket
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toys

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.model_settings import Model
from pipelines.curate import run as stage
from pipelines.curate.formats import MAX_JSON_BYTES, Limits, read_file
from pipelines.curate.mapping import to_problem
from pipelines.curate.sources import rows
from pipelines.curate.values import RowError
from pipelines.data import dataset, files
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Curate, Source
from pipelines.stage.report import Report

pytestmark = pytest.mark.hostile
GOOD = {"prompt": "2 + 2?", "answer": "4"}
USER = {"role": "user", "content": "2 + 2?"}
TEMPLATE = "sort {metadata.letters}"


def outcome(row, **settings):
    """What becomes of a row: (last prompt text, answer), or (field, reason) as an error."""
    source = Source(kind="file", path="x.jsonl", verifier=settings.pop("verifier", "exact"), **settings)
    if row.columns is None:
        return RowError, row.error.field, row.error.reason
    try:
        problem = to_problem(row.columns, source, self_check=True)
    except RowError as error:
        return RowError, error.field, error.reason
    return problem.prompt[-1]["content"], problem.answer


def bad(field, reason):
    return RowError, field, reason


def deep(levels):
    return b'{"prompt": "q", "answer": "4", "extra": ' + b"[" * levels + b"]" * levels + b"}"


NOT_JSON, NO_ANSWER, NO_PROMPT = (
    bad("row", "not JSON"),
    bad("answer", "the row has no answer"),
    bad("prompt", "no prompt"),
)
JSON_LINES: dict[str, tuple[bytes, tuple]] = {
    "plain": (b'{"prompt": "2 + 2?", "answer": "4"}', ("2 + 2?", "4")),
    "carriage return": (b'{"prompt": "2 + 2?", "answer": "4"}\r', ("2 + 2?", "4")),
    "half a line": (b'{"prompt": "2 + 2?", "ans', NOT_JSON),
    "a word": (b"hello", NOT_JSON),
    "two objects": (b'{"a": 1} {"b": 2}', NOT_JSON),
    "single quotes": (b"{'prompt': 'q', 'answer': '4'}", NOT_JSON),
    "trailing comma": (b'{"prompt": "q", "answer": "4",}', NOT_JSON),
    "raw tab in a string": (b'{"prompt": "a\tb", "answer": "4"}', NOT_JSON),
    "raw NUL in a string": (b'{"prompt": "a\0b", "answer": "4"}', NOT_JSON),
    "only NULs": (b"\0" * 100, NOT_JSON),
    "a list": (b'["q", "4"]', bad("row", "not a JSON object")),
    "a number": (b"3", bad("row", "not a JSON object")),
    "null": (b"null", bad("row", "not a JSON object")),
    "a string": (b'"q"', bad("row", "not a JSON object")),
    "lone high surrogate": (b'{"prompt": "a \\ud800 b", "answer": "4"}', bad("prompt", "a lone surrogate")),
    "lone low surrogate": (b'{"prompt": "a \\udc00 b", "answer": "4"}', bad("prompt", "a lone surrogate")),
    "swapped surrogates": (b'{"prompt": "a \\ude00\\ud83d", "answer": "4"}', bad("prompt", "a lone surrogate")),
    "surrogate pair": (b'{"prompt": "a \\ud83d\\ude00", "answer": "4"}', ("a \U0001f600", "4")),
    "surrogate in the answer": (b'{"prompt": "q", "answer": "\\uD800"}', bad("answer", "a lone surrogate")),
    "surrogate in info": (b'{"prompt": "q", "answer": "4", "info": {"a": ["\\udfff"]}}', bad("info", "a lone surrogate")),
    "surrogate in an unused column": (b'{"prompt": "q", "answer": "4", "z": "\\ud800"}', bad("z", "a lone surrogate")),
    "surrogate in a key": (b'{"prompt": "q", "answer": "4", "\\ud800": 1}', bad("row", "a lone surrogate")),
    "surrogate as bytes": (b'{"prompt": "a \xed\xa0\x80", "answer": "4"}', bad("row", "not UTF-8")),
    "invalid UTF-8": (b'{"prompt": "caf\xe9", "answer": "4"}', bad("row", "not UTF-8")),
    "overlong UTF-8": (b'{"prompt": "a\xc0\xaf", "answer": "4"}', bad("row", "not UTF-8")),
    "cut UTF-8": (b'{"prompt": "a", "answer": "\xe2\x82"}', bad("row", "not UTF-8")),
    "U+FFFD of the author's": ('{"prompt": "a \ufffd", "answer": "4"}'.encode(), ("a \ufffd", "4")),
    "integer of 5,000 digits": (b'{"prompt": "q", "answer": ' + b"9" * 5000 + b"}", bad("row", "an integer is too long")),
    "integer of 4,000 digits": (b'{"prompt": "q", "answer": ' + b"9" * 4000 + b"}", ("q", "9" * 4000)),
    "negative, 5,000 digits": (b'{"prompt": "q", "answer": -' + b"9" * 5000 + b"}", bad("row", "an integer is too long")),
    "5,000 digits elsewhere": (b'{"prompt": "q", "answer": "4", "z": ' + b"9" * 5000 + b"}", bad("row", "an integer is too long")),
    "5,000 digits as text": (b'{"prompt": "q", "answer": "' + b"9" * 5000 + b'"}', ("q", "9" * 5000)),
    "nested 50": (deep(50), ("q", "4")),
    "nested 101": (deep(101), bad("row", "nested too deeply")),
    "nested 900": (deep(900), bad("row", "nested too deeply")),
    "nested 100,000": (deep(100_000), bad("row", "nested too deeply")),
    "open 100,000": (b"[" * 100_000, bad("row", "nested too deeply")),
    "objects nested 900": (b'{"a":' * 900 + b"1" + b"}" * 900, bad("row", "nested too deeply")),
    "brackets in text": (b'{"prompt": "' + b"[" * 5000 + b'", "answer": "4"}', ("[" * 5000, "4")),
    "NaN": (b'{"prompt": "q", "answer": NaN}', bad("row", "a number is not finite")),
    "Infinity": (b'{"prompt": "q", "answer": Infinity}', bad("row", "a number is not finite")),
    "minus Infinity elsewhere": (b'{"prompt": "q", "answer": "4", "z": -Infinity}', bad("row", "a number is not finite")),
    "1e999": (b'{"prompt": "q", "answer": 1e999}', bad("row", "a number is not finite")),
    "the same key twice": (b'{"prompt": "q", "answer": "4", "answer": "5"}', bad("answer", "the key stands twice in one object")),
    "a key twice inside": (b'{"prompt": "q", "answer": "4", "info": {"a": 1, "a": 2}}', bad("a", "the key stands twice in one object")),
    "embedded NUL": (b'{"prompt": "a\\u0000b", "answer": "4\\u0000"}', ("ab", "4")),
    "only control characters": (b'{"prompt": "\\u0000\\u0001", "answer": "4"}', bad("prompt", "the prompt is empty")),
    "a NUL as the answer": (b'{"prompt": "q", "answer": "\\u0000"}', NO_ANSWER),
    "a long row": (b'{"prompt": "' + b"a" * 70_000 + b'", "answer": "4"}', bad("row", "the row is too long")),
}  # fmt: skip


@pytest.mark.parametrize("name", JSON_LINES)
def test_a_json_line_and_its_neighbours(name, tmp_path):
    line, expected = JSON_LINES[name]
    before, after = (json.dumps({"prompt": p, "answer": "1"}).encode() for p in ("before", "after"))
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join([before, line, b"", after]))
    found = list(read_file(path, limits=Limits(row_bytes=60_000 if name == "a long row" else 2**20)))
    assert [row.number for row in found] == [1, 2, 4]
    assert [outcome(row) for row in found] == [("before", "1"), expected, ("after", "1")]
    assert all(len(row.sample) <= 300 for row in found)


@pytest.mark.parametrize("name", [n for n in JSON_LINES if n not in ("a long row", "carriage return")])
def test_the_same_row_in_a_json_list(name, tmp_path):
    line, expected = JSON_LINES[name]
    path = tmp_path / "rows.json"
    path.write_bytes(b'[{"prompt": "before", "answer": "1"},\n' + line + b',\n{"prompt": "after", "answer": "1"}]')
    whole = {"half a line", "open 100,000", "two objects"}  # their brackets never close, or there is no comma
    if name in whole:
        with pytest.raises(DataError, match=r"rows\.json: it is not JSON: line \d"):
            list(read_file(path))
        return
    assert [outcome(row) for row in read_file(path)] == [("before", "1"), expected, ("after", "1")]


def msg(*messages, **more):
    return {"prompt": list(messages), "answer": "4", **more}


def said(content):
    return {"role": "user", "content": content}


ANSWER = {"role": "assistant", "content": "4"}
CALL, ROLE = "a tool call without a function's name", "unknown role"
CALLS = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}]
ROWS: dict[str, tuple] = {
    "no prompt": ({"answer": "4"}, NO_PROMPT),
    "empty object": ({}, NO_PROMPT),
    "null prompt": ({"prompt": None, "answer": "4"}, NO_PROMPT),
    "empty prompt": ({"prompt": "", "answer": "4"}, NO_PROMPT),
    "blank prompt": ({"prompt": " \n", "answer": "4"}, bad("prompt", "the prompt is empty")),
    "prompt is a number": ({"prompt": 5, "answer": "4"}, bad("prompt", "not text")),
    "prompt is true": ({"prompt": True, "answer": "4"}, bad("prompt", "not text")),
    "prompt is an object": ({"prompt": {"text": "q"}, "answer": "4"}, bad("prompt", "not text")),
    "prompt is a list of texts": ({"prompt": ["q"], "answer": "4"}, bad("prompt", "not a list of messages with role and content")),
    "prompt is bytes": ({"prompt": "é?".encode(), "answer": "4"}, ("é?", "4")),
    "prompt is other bytes": ({"prompt": b"\xff\xfe", "answer": "4"}, bad("prompt", "not UTF-8")),
    "prompt is a date": ({"prompt": dt.date(2024, 1, 2), "answer": "4"}, bad("prompt", "not text")),
    "messages: []": ({"messages": [], "answer": "4"}, bad("messages", "an empty list of messages")),
    "prompt: [] and nothing else": ({"prompt": [], "answer": "4"}, NO_PROMPT),
    "messages is text": ({"messages": "q", "answer": "4"}, ("q", "4")),
    "messages is a number": ({"messages": 3, "answer": "4"}, bad("messages", "not text")),
    "no content": (msg({"role": "user"}), bad("prompt", "a message without content")),
    "no role": (msg({"content": "q"}), bad("prompt", "not a list of messages with role and content")),
    "content: null": (msg(said(None)), bad("prompt", "a message without content")),
    "content is a number": (msg(said(3)), bad("prompt", "not text")),
    "content is an object": (msg(said({"text": "q"})), bad("prompt", "not text")),
    "content: []": (msg(said([])), bad("prompt", "the prompt is empty")),
    "text parts": (msg(said([{"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}])), ("2 + 2?", "4")),
    "bare text parts": (msg(said(["2 + ", "2?"])), ("2 + 2?", "4")),
    "image part": (msg(said([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}])), bad("prompt", "a content part that is not text")),
    "image part with text": (msg(said([{"type": "image", "text": "x"}])), bad("prompt", "a content part that is not text")),
    "a null part": (msg(said([None])), bad("prompt", "a content part that is not text")),
    "a part without text": (msg(said([{"type": "text"}])), bad("prompt", "a content part that is not text")),
    "a null message": (msg(None), bad("prompt", "not a list of messages with role and content")),
    "assistant only": (msg(ANSWER), bad("prompt", "only assistant messages")),
    "assistant only, twice": (msg(ANSWER, ANSWER), bad("prompt", "only assistant messages")),
    "assistant only in messages": ({"messages": [ANSWER], "answer": "4"}, bad("messages", "only assistant messages")),
    "system only": (msg({"role": "system", "content": "be kind"}), bad("prompt", "the prompt is empty")),
    "assistant at the end": (msg(USER, ANSWER), ("2 + 2?", "4")),
    "a dialogue": (msg(USER, ANSWER, said("sure?")), ("sure?", "4")),
    "unknown role": (msg({"role": "narrator", "content": "q"}), bad("prompt", ROLE)),
    "another name of a role": (msg({"role": "human", "content": "q"}), ("q", "4")),
    "role in capitals": (msg({"role": "User", "content": "q"}), bad("prompt", ROLE)),
    "role is a number": (msg({"role": 1, "content": "q"}), bad("prompt", ROLE)),
    "role is a list": (msg({"role": ["user"], "content": "q"}), bad("prompt", ROLE)),
    "role is null": (msg({"role": None, "content": "q"}), bad("prompt", ROLE)),
    "tool message": (msg(USER, {"role": "tool", "content": "4"}), ("4", "4")),
    "a tool call as an object": (msg(USER, {"role": "assistant", "content": None, "tool_calls": CALLS}, {"role": "tool", "content": "4"}), ("4", "4")),
    "tool call": (msg(USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, said("q")), bad("prompt", CALL)),
    "no answer": ({"prompt": "q"}, NO_ANSWER),
    "null answer": ({"prompt": "q", "answer": None}, NO_ANSWER),
    "blank answer": ({"prompt": "q", "answer": "  "}, NO_ANSWER),
    "answer: []": ({"prompt": "q", "answer": []}, NO_ANSWER),
    "answer: [null]": ({"prompt": "q", "answer": [None]}, NO_ANSWER),
    "answer: {}": ({"prompt": "q", "answer": {}}, NO_ANSWER),
    "answer is an object": ({"prompt": "q", "answer": {"value": 4}}, bad("answer", "not text or a number")),
    "answer is a list of lists": ({"prompt": "q", "answer": [["4"]]}, bad("answer", "not text or a number")),
    "several answers": ({"prompt": "q", "answer": ["4", "four"]}, bad("answer", "several answers")),
    "the same answer twice": ({"prompt": "q", "answer": ["4", " 4"]}, ("q", "4")),
    "answer 0": ({"prompt": "q", "answer": 0}, ("q", "0")),
    "answer 0.0": ({"prompt": "q", "answer": 0.0}, ("q", "0.0")),
    "answer false": ({"prompt": "q", "answer": False}, ("q", "False")),
    "answer true": ({"prompt": "q", "answer": True}, ("q", "True")),
    "answer 0.1": ({"prompt": "q", "answer": 0.1}, ("q", "0.1")),
    "answer NaN from Parquet": ({"prompt": "q", "answer": float("nan")}, bad("answer", "a number is not finite")),
    "answer Decimal": ({"prompt": "q", "answer": Decimal("1.50")}, ("q", "1.50")),
    "answer Decimal NaN": ({"prompt": "q", "answer": Decimal("NaN")}, bad("answer", "a number is not finite")),
    "answer bytes": ({"prompt": "q", "answer": b"4"}, ("q", "4")),
    "answer other bytes": ({"prompt": "q", "answer": b"\x80"}, bad("answer", "not UTF-8")),
    "answer date": ({"prompt": "q", "answer": dt.date(2024, 5, 6)}, ("q", "2024-05-06")),
    "answer time stamp": ({"prompt": "q", "answer": dt.datetime(2024, 5, 6, 7, 8)}, ("q", "2024-05-06T07:08:00")),
    "answer too long an integer": ({"prompt": "q", "answer": 10**5000}, bad("answer", "an integer is too long")),
    "answer another type": ({"prompt": "q", "answer": object()}, bad("answer", "a type that is not read")),
    "many spaces after ####": ({"prompt": "q", "answer": "a #### 1" + " " * 100_000 + "x"}, ("q", "1" + " " * 100_000 + "x")),
    "#### and nothing": ({"prompt": "q", "answer": "a ####"}, ("q", "a ####")),
    "#### and a comma": ({"prompt": "q", "answer": "a #### ,"}, NO_ANSWER),
    "boxed without end": ({"prompt": "q", "answer": "\\boxed{4"}, bad("answer", r"no \boxed{} (answer_from: boxed)")),
    "boxed nothing": ({"prompt": "q", "answer": "\\boxed{}"}, NO_ANSWER),
    "solution is a number": ({"prompt": "q", "answer": "4", "solution": 4}, bad("solution", "not text")),
    "solution is an object": ({"prompt": "q", "answer": "4", "response": {"a": 1}}, bad("solution", "not text")),
    "solution is a list of texts": ({"prompt": "q", "answer": "4", "solution": ["4"]}, bad("solution", "not text or messages")),
    "solution without content": ({"prompt": "q", "answer": "4", "completion": [{"role": "assistant"}]}, bad("solution", "a message without content")),
    "solution parts": ({"prompt": "q", "answer": "4", "completion": [{"role": "assistant", "content": [{"type": "text", "text": "so 4"}]}]}, ("q", "4")),
    "reward_model is text": ({"prompt": "q", "reward_model": "4"}, NO_ANSWER),
    "ground truth is an object": ({"prompt": "q", "reward_model": {"ground_truth": {"target": 4}}}, bad("answer", "not text or a number")),
    "info is a number": ({**GOOD, "info": 3}, bad("info", "not an object")),
    "info is a list": ({**GOOD, "info": [1]}, bad("info", "not an object")),
    "info is JSON": ({**GOOD, "info": '{"a": 1}'}, ("2 + 2?", "4")),
    "info is broken JSON": ({**GOOD, "info": "{a"}, bad("info", "not JSON")),
    "info is deep JSON": ({**GOOD, "info": "[" * 100_000}, bad("info", "nested too deeply")),
    "info holds bytes": ({**GOOD, "info": {"image": b"\x89PNG"}}, bad("info", "not UTF-8")),
    "info holds NaN": ({**GOOD, "info": {"a": float("nan")}}, bad("info", "a number is not finite")),
    "info holds a date": ({**GOOD, "info": {"a": dt.date(2024, 1, 2)}}, ("2 + 2?", "4")),
    "info holds a set": ({**GOOD, "info": {"a": {1}}}, bad("info", "a type that is not read")),
    "extra_info is text": ({**GOOD, "extra_info": "x"}, bad("extra_info", "not JSON")),
    "solution in info is a list": ({**GOOD, "info": {"solution": [1]}}, bad("info", "its solution is not text")),
    "verifier is a number": ({**GOOD, "verifier": 3}, bad("verifier", "not text"), {"verifier": None}),
    "verifier is unknown": ({**GOOD, "verifier": "vibes"}, bad("verifier", "unknown verifier"), {"verifier": None}),
    "data_source is a list": ({**GOOD, "data_source": ["a"]}, bad("data_source", "not text")),
    "data_source is a book": ({**GOOD, "data_source": "a" * 201}, bad("data_source", "the name is too long")),
    "uid is a list": ({**GOOD, "uid": [1]}, bad("uid", "not text or a number")),
    "uid is true": ({**GOOD, "uid": True}, bad("uid", "not text or a whole number")),
    "uid is 1.5": ({**GOOD, "uid": 1.5}, bad("uid", "not text or a whole number")),
    "uid of 65 characters": ({**GOOD, "uid": "u" * 65}, bad("uid", "over 64 characters, or not printable")),
    "uid with a line end": ({**GOOD, "uid": "a\nb"}, bad("uid", "over 64 characters, or not printable")),
    "uid is null": ({**GOOD, "uid": None}, ("2 + 2?", "4")),
    "uid column is null": ({**GOOD, "id": None}, bad("uid", "not text or a number"), {"columns": {"uid": "id"}}),
    "uid column is blank": ({**GOOD, "id": " "}, bad("uid", "it is empty"), {"columns": {"uid": "id"}}),
    "a column this row lacks": (GOOD, bad("prompt", "the row lacks the column"), {"columns": {"prompt": "text"}}),
    "system is a number": ({**GOOD, "s": 3}, bad("system", "not text"), {"columns": {"system": "s"}}),
    "Body is a surrogate": ({**GOOD, "Body": "\ud800"}, bad("Body", "a lone surrogate")),
    "template without info": (GOOD, bad("info.metadata", "not an object, and prompt_template needs it"), {"prompt_template": TEMPLATE}),
    "template, metadata null": ({**GOOD, "info": {"metadata": None}}, bad("info.metadata", "not an object, and prompt_template needs it"), {"prompt_template": TEMPLATE}),
    "template, metadata broken": ({**GOOD, "info": {"metadata": "{"}}, bad("info.metadata", "not JSON"), {"prompt_template": TEMPLATE}),
    "template, metadata a list": ({**GOOD, "info": {"metadata": "[1]"}}, bad("info.metadata", "not an object, and prompt_template needs it"), {"prompt_template": TEMPLATE}),
    "template, metadata deep": ({**GOOD, "info": {"metadata": "[" * 900 + "]" * 900}}, bad("info.metadata", "nested too deeply"), {"prompt_template": TEMPLATE}),
    "template, other key": ({**GOOD, "info": {"metadata": '{"a": 1}'}}, bad("info.metadata", "prompt_template asks for 'letters'"), {"prompt_template": TEMPLATE}),
    "template, null entry": ({**GOOD, "info": {"metadata": '{"letters": null}'}}, bad("info.metadata", "not text or a number"), {"prompt_template": TEMPLATE}),
    "template, object entry": ({**GOOD, "info": {"metadata": {"letters": {"a": 1}}}}, bad("info.metadata", "not text or a number"), {"prompt_template": TEMPLATE}),
    "template, letters": ({**GOOD, "info": {"metadata": '{"letters": ["a", "b"]}'}}, ("sort ab", "4"), {"prompt_template": TEMPLATE}),
    "template, braces in the data": ({**GOOD, "info": {"metadata": '{"letters": "{prompt}"}'}}, ("sort {prompt}", "4"), {"prompt_template": TEMPLATE}),
    "gold that fails its verifier": ({"prompt": "q", "answer": "none"}, bad("answer", "does not verify itself with number"), {"verifier": "number"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_python_values(name):
    from pipelines.curate.formats import Row

    columns, expected, *settings = ROWS[name]
    before = copy.deepcopy(columns)
    assert outcome(Row("x", 1, columns), **(settings[0] if settings else {})) == expected
    assert columns == before or name in (
        "answer NaN from Parquet",
        "answer Decimal NaN",
        "info holds NaN",
        "answer another type",
    )


LINE = json.dumps(GOOD).encode() + b"\n"
ONE = [("2 + 2?", "4")]


def parquet(columns):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def binary_as_text(*values):
    """A string column with bytes that are not UTF-8, as broken writers make it."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())


PARQUET = parquet({"prompt": ["2 + 2?"] * 500, "answer": ["4"] * 500})
FILES: dict[str, tuple[str, bytes, object]] = {
    # accepted
    "UTF-8 BOM": ("a.jsonl", b"\xef\xbb\xbf" + LINE, ONE),
    "UTF-16 LE": ("a.jsonl", b"\xff\xfe" + LINE.decode().encode("utf-16-le"), ONE),
    "UTF-16 BE": ("a.jsonl", b"\xfe\xff" + LINE.decode().encode("utf-16-be"), ONE),
    "UTF-32": ("a.jsonl", LINE.decode().encode("utf-32"), ONE),
    "UTF-16 with half a pair": ("a.jsonl", b"\xff\xfe" + LINE.decode().encode("utf-16-le") + b"\x00\xd8\n\x00", [*ONE, bad("row", "not UTF-8")]),
    "BOM in gz": ("a.jsonl.gz", gzip.compress(b"\xef\xbb\xbf" + LINE), ONE),
    "BOM in CSV": ("a.csv", b"\xef\xbb\xbfprompt,answer\n2 + 2?,4\n", ONE),
    "BOM in JSON": ("a.json", b"\xef\xbb\xbf[" + LINE + b"]", ONE),
    "UTF-16 CSV": ("a.csv", "\ufeffprompt,answer\nÄ?,4\n".encode("utf-16-le"), [("Ä?", "4")]),
    "no line end at the end": ("a.jsonl", LINE.rstrip(), ONE),
    "Windows line ends": ("a.jsonl", LINE.rstrip() + b"\r\n" + LINE.replace(b"2 +", b"3 +").rstrip() + b"\r\n", [*ONE, ("3 + 2?", "4")]),
    "capital ending": ("a.JSONL", LINE, ONE),
    "gz": ("a.jsonl.gz", gzip.compress(LINE), ONE),
    "two gz members": ("a.jsonl.gz", gzip.compress(LINE) + gzip.compress(LINE), ONE * 2),
    "gz padded with zeros": ("a.jsonl.gz", gzip.compress(LINE) + b"\0" * 512, ONE),
    "bad UTF-8 in gz": ("a.jsonl.gz", gzip.compress(b'{"prompt": "\xff"}\n' + LINE), [bad("row", "not UTF-8"), *ONE]),
    "object with one list": ("a.json", b'{"version": "1", "data": [' + LINE + b'], "n": 1}', ONE),
    "ragged CSV": ("a.csv", b"prompt,answer\n2 + 2?,4,5\nq\n2 + 2?,4\n", [bad("row", "too few or too many fields")] * 2 + ONE),
    "blank lines in CSV": ("a.csv", b"prompt,answer\n\n2 + 2?,4\n\n", ONE),
    "NUL in CSV": ("a.csv", b"prompt,answer\n2 + \x002?,4\n", ONE),
    "bad UTF-8 in CSV": ("a.csv", b"prompt,answer\n\xff,4\n2 + 2?,4\n", [bad("prompt", "not UTF-8"), *ONE]),
    "text after a quote": ("a.csv", b'prompt,answer\n"a"b,4\n2 + 2?,4\n', [bad("row", "not CSV"), *ONE]),
    "line end in a CSV field": ("a.csv", b'prompt,answer\n"a\nb",4\n2 + 2?,4\n', [("a\nb", "4"), *ONE]),
    "CSV field of 200 kB": ("a.csv", b"prompt,answer\n" + b"a" * 200_000 + b",4\n", [("a" * 200_000, "4")]),
    "CSV row over the limit": ("a.csv", b"prompt,answer\n" + b"a" * 1_500_000 + b",4\n2 + 2?,4\n", [bad("row", "the row is too long"), *ONE]),
    "spaces in the CSV header": ("a.csv", b"prompt , answer\n2 + 2?,4\n", ONE),
    "Parquet bytes": ("a.parquet", parquet({"prompt": pa.array([b"2 + 2?", b"\xff"]), "answer": ["4", "4"]}), [*ONE, bad("prompt", "not UTF-8")]),
    "Parquet decimals": ("a.parquet", parquet({"prompt": ["q"], "answer": pa.array([Decimal("1.50")])}), [("q", "1.50")]),
    "Parquet dates": ("a.parquet", parquet({"prompt": ["q"], "answer": pa.array([dt.date(2024, 5, 6)])}), [("q", "2024-05-06")]),
    "Parquet NaN": ("a.parquet", parquet({"prompt": ["q", "2 + 2?"], "answer": [float("nan"), 4.0]}), [bad("answer", "a number is not finite"), ("2 + 2?", "4.0")]),
    "Parquet null": ("a.parquet", parquet({"prompt": ["q", "2 + 2?"], "answer": [None, "4"]}), [NO_ANSWER, *ONE]),
    "Parquet bad text": ("a.parquet", parquet({"prompt": binary_as_text(b"\xff\xfe", b"2 + 2?"), "answer": ["4", "4"]}), [bad("prompt", "not UTF-8"), *ONE]),
    "Parquet year 60000": ("a.parquet", parquet({"prompt": ["q", "2 + 2?"], "answer": ["4", "4"], "t": pa.array([2**60, 0], pa.timestamp("us"))}), [bad("t", "a value that cannot be read"), *ONE]),
    "Parquet messages": ("a.parquet", parquet({"messages": [[USER, ANSWER]], "answer": ["4"]}), ONE),
    "Parquet long row": ("a.parquet", parquet({"prompt": ["a" * 1_500_000, "2 + 2?"], "answer": ["4", "4"]}), [bad("row", "the row is too long"), *ONE]),
    # refused as a whole
    "empty": ("a.jsonl", b"", "it is empty"),
    "only line ends": ("a.jsonl", b"\n\n", "it has no rows"),
    "empty CSV": ("a.csv", b"", "it is empty"),
    "only a CSV header": ("a.csv", b"prompt,answer\n", "it has no rows"),
    "empty JSON": ("a.json", b"  ", "it holds no list of rows"),
    "JSON scalar": ("a.json", b"3", "it holds no list of rows"),
    "JSON string": ("a.json", b'"rows"', "it holds no list of rows"),
    "JSON null": ("a.json", b"null", "it holds no list of rows"),
    "JSON []": ("a.json", b"[]", "it has no rows"),
    "JSON {}": ("a.json", b"{}", "it holds no lists of rows"),
    "JSON, one record": ("a.json", LINE, "it holds no lists of rows"),
    "JSON, two lists": ("a.json", b'{"a": [1], "b": [2]}', "it holds 2 lists of rows"),
    "JSON, cut list": ("a.json", b"[" + LINE + b",", "it is not JSON: line 2"),
    "JSON, cut object": ("a.json", b'{"data": [' + LINE, "it is not JSON"),
    "JSON, no colon": ("a.json", b'{"data" [1]}', "it is not JSON"),
    "JSON, text after": ("a.json", b"[" + LINE + b"] x", "it is not JSON"),
    "JSON, text after the object": ("a.json", b'{"data": [1]} x', "it is not JSON"),
    "JSON, trailing comma": ("a.json", b"[" + LINE + b",]", "it is not JSON"),
    "JSON that is JSON Lines": ("a.json", LINE + LINE, "it is not JSON.*Call it .jsonl"),
    "JSON nested 100,000, open": ("a.json", b"[" * 100_000, "it is not JSON"),
    "gz cut": ("a.jsonl.gz", gzip.compress(LINE * 1000, mtime=0)[:40], "the gzip data is cut off"),
    "gz without its end": ("a.jsonl.gz", gzip.compress(LINE)[:-8], "the gzip data is cut off"),
    "not gz": ("a.jsonl.gz", LINE, "it is not gzip from its start"),
    "garbage after gz": ("a.jsonl.gz", gzip.compress(LINE) + b"garbage", "it is not gzip after"),
    "gz damaged inside": ("a.jsonl.gz", gzip.compress(os.urandom(3000))[:500] + b"\xff" * 600, "it is not gzip|cut off"),
    "gz with a wrong sum": ("a.jsonl.gz", gzip.compress(LINE)[:-8] + b"\0" * 8, "it is not gzip after"),
    "gz of nothing": ("a.jsonl.gz", gzip.compress(b""), "it has no rows"),
    "empty gz": ("a.jsonl.gz", b"", "it is empty"),
    "UTF-16 cut": ("a.jsonl", b"\xff\xfe" + LINE.decode().encode("utf-16-le")[:-1], "it is not UTF-16-LE"),
    "Parquet, empty file": ("a.parquet", b"", "it is empty"),
    "Parquet, no rows": ("a.parquet", parquet({"prompt": pa.array([], pa.string())}), "it has no rows"),
    "Parquet, no columns": ("a.parquet", parquet({}), "it has no rows"),
    "Parquet cut": ("a.parquet", PARQUET[:-20], "it is not a whole Parquet file"),
    "Parquet, only its end": ("a.parquet", PARQUET[-200:], "it is not a whole Parquet file"),
    "Parquet, pages damaged": ("a.parquet", PARQUET[:4] + b"\xff" * 60 + PARQUET[64:], "it is not a whole Parquet file"),
    "Parquet is text": ("a.parquet", LINE, "it is not a whole Parquet file"),
    "Parquet in gz": ("a.parquet.gz", gzip.compress(PARQUET), "not read through gzip"),
    "CSV, open quote": ("a.csv", b'prompt,answer\n2 + 2?,4\n"open,4\nx,5\n', "it is not CSV: line 3"),
    "CSV, open quote and much text": ("a.csv", b'prompt,answer\n"open,4\n' + b"x,5\n" * 1_200_000, "the row of line 2 has over"),
    "CSV, a column twice": ("a.csv", b"prompt,answer,answer\n1,2,3\n", "the column 'answer' stands twice"),
    "CSV header not UTF-8": ("a.csv", b"pr\xffmpt,answer\n1,2\n", "its first line is not UTF-8"),
    "no ending": ("rows", LINE, "its ending is none that is read"),
    "a zip": ("a.zip", b"PK\x03\x04", "its ending is none that is read"),
    "only .gz": ("a.gz", gzip.compress(LINE), "its ending is none that is read"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file(name, tmp_path):
    file, raw, expected = FILES[name]
    path = tmp_path / file
    path.write_bytes(raw)
    read = (outcome(row) for row in read_file(path, limits=Limits(row_bytes=2**20)))
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected) as caught:
            list(read)
        assert f"{path}: " in str(caught.value) and "\n" not in str(caught.value)
    else:
        assert list(read) == expected


def refused(path, match, **limits):
    with pytest.raises(DataError, match=match) as caught:
        list(read_file(Path(path), limits=Limits(**limits)))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_gzip_bomb_is_refused_early_whatever_its_lines(tmp_path, monkeypatch):
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * 80 * 2**20))
    refused(path, "unpacks to over 200 times its size")
    path.write_bytes(gzip.compress(LINE * 2_000_000))
    with pytest.raises(DataError, match="unpacks to over 200 times its size"):
        next(read_file(path))  # before any of its rows, which are all good, is read
    monkeypatch.setattr(files, "UNPACKED_ALWAYS", 2**20)
    path.write_bytes(gzip.compress(LINE * 100_000))
    refused(path, "unpacks to over 10 times its size.*max_unpacked_ratio", unpacked_ratio=10)
    assert len(list(read_file(path, limits=Limits(unpacked_ratio=1000)))) == 100_000


@pytest.mark.timeout(20)
def test_what_is_not_a_regular_file_is_named_and_never_waited_for(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    refused(tmp_path / "folder.jsonl", "it is a folder")
    os.mkfifo(tmp_path / "pipe.jsonl")
    refused(tmp_path / "pipe.jsonl", "it is a pipe")
    (tmp_path / "dangling.jsonl").symlink_to(tmp_path / "gone.jsonl")
    refused(tmp_path / "dangling.jsonl", r"it is a link to .*gone\.jsonl, which does not exist")
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    refused(tmp_path / "loop.jsonl", "it cannot be opened")
    refused(tmp_path / "nothing.jsonl", "there is no such file")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    refused(tmp_path / "zero.jsonl", "it is a device")
    (tmp_path / "null.parquet").symlink_to("/dev/null")
    refused(tmp_path / "null.parquet", "it is a device")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener, contextlib.chdir(tmp_path):
        listener.bind("socket.jsonl")
        refused(tmp_path / "socket.jsonl", "it is a socket")


def test_a_file_without_permission_is_named(tmp_path):
    path = tmp_path / "secret.jsonl"
    path.write_bytes(LINE)
    path.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65_534)
        refused(path, "this user may not read it.*chmod u\\+r")
    finally:
        os.seteuid(user)


def test_a_file_that_changes_while_it_is_read(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(LINE * 10)
    reading = read_file(path)
    next(reading)
    with open(path, "ab") as handle:
        handle.write(LINE)
    with pytest.raises(DataError, match=r"log\.jsonl: it changed while it was read"):
        list(reading)


def test_a_file_that_is_deleted_or_replaced_while_it_is_read_is_read_to_its_end(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINE * 1000)
    reading = read_file(path)
    next(reading)
    path.unlink()
    path.write_bytes(b"something else")
    assert len(list(reading)) == 999


def test_a_large_json_file_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    with open(path, "wb") as handle:
        handle.truncate(MAX_JSON_BYTES + 10)
    monkeypatch.setattr("pipelines.curate.formats.MAX_JSON_BYTES", 1000)
    refused(path, "over 1,000 bytes.*jsonl")


@pytest.mark.parametrize("seed", range(8))
def test_damaged_parquet_is_rows_or_one_error(seed, tmp_path):
    import random

    draw = random.Random(seed)
    path = tmp_path / "rows.parquet"
    for _ in range(12):
        raw = bytearray(PARQUET)
        for _ in range(draw.randint(1, 8)):
            raw[draw.randrange(4, len(raw) - 8)] = draw.randrange(256)
        path.write_bytes(raw)
        with contextlib.suppress(DataError):
            for row in read_file(path):
                assert row.columns is not None or row.error is not None


def names(path, **fields):
    return [row.file for row in rows(Source(kind="file", path=str(path), **fields))]


def test_paths_with_brackets_homes_and_globs(tmp_path, monkeypatch):
    folder = tmp_path / "run [x]"
    (folder / "b").mkdir(parents=True)
    for name in ("rows [1].jsonl", "b/rows.jsonl", "b/more.jsonl"):
        (folder / name).write_bytes(LINE)
    (folder / "b" / "folder.jsonl").mkdir()
    assert names(folder / "rows [1].jsonl") == ["rows [1].jsonl"]
    monkeypatch.setenv("HOME", str(folder))
    assert names("~/b/rows.jsonl") == ["rows.jsonl"]
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder.rename(tmp_path / "home")
    assert names("~/b/*.jsonl") == ["more.jsonl", "rows.jsonl"]
    assert names(tmp_path / "home" / "**" / "*.jsonl") == ["b/more.jsonl", "b/rows.jsonl", "rows [1].jsonl"]
    monkeypatch.chdir(tmp_path)
    assert names("home/b/[rm]o*.jsonl") == ["more.jsonl", "rows.jsonl"]
    with pytest.raises(DataError, match="no file at ~/zzz"):
        names("~/zzz")


def test_a_recipe_s_files_are_found_and_checked_before_the_first_stage(tmp_path, monkeypatch):
    def read(path):
        source = {"kind": "file", "path": str(path), "verifier": "exact"}
        check(read_recipe(toys.recipe(tmp_path, curate={"sources": [source]})))

    folder = tmp_path / "run [x]"
    folder.mkdir()
    (folder / "rows.jsonl").write_bytes(LINE)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (
        folder / "rows.jsonl",
        "~/run [x]/rows.jsonl",
        tmp_path / "**" / "*.jsonl",
        "~/*/*.jsonl",
        folder / "*.jsonl",
    ):
        read(path)
        assert names(path) in (["rows.jsonl"], ["run [x]/rows.jsonl"])
    for path in ("~/none.jsonl", folder / "*.json", tmp_path / "[y].jsonl"):
        with pytest.raises(RecipeError, match=r"curate\.sources\.0\.path: no file at "):
            read(path)
    os.mkfifo(folder / "pipe.jsonl")
    with pytest.raises(RecipeError, match=r"curate\.sources\.0\.path: .*pipe\.jsonl: it is a pipe"):
        read(tmp_path / "*" / "*.jsonl")


def test_a_local_dataset_folder_is_read_like_files(tmp_path, monkeypatch):
    folder = tmp_path / "data [x]"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train-00000-of-00001.jsonl").write_bytes(LINE + b"{broken\n")
    (folder / "data" / "test-00000-of-00001.jsonl").write_bytes(LINE)
    monkeypatch.setenv("HOME", str(tmp_path))
    hub = Source(kind="hub", path="~/data [x]", verifier="exact")
    assert [outcome(row) for row in rows(hub)] == [*ONE, NOT_JSON]
    with pytest.raises(DataError, match=r"no split 'dev'\. Known: test, train"):
        list(rows(Source(kind="hub", path=str(folder), split="dev")))
    (folder / "data" / "train-00000-of-00001.jsonl").write_bytes(b"")
    with pytest.raises(DataError, match=r"train-00000-of-00001\.jsonl: it is empty"):
        list(rows(hub))


def curate(tmp_path, *raw, name="rows.jsonl", **fields):
    """The whole stage over a file: rows kept, quarantine file, card."""
    (tmp_path / name).write_bytes(b"\n".join(raw))
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    source = {"kind": "file", "path": str(tmp_path / name), "verifier": "exact", **fields}
    settings = Curate.model_validate({"sources": [source], "near_duplicates": None, "splits": {"train": 1.0}})
    model = Model.model_validate({"fresh": {"architecture": "llama", "config": {}}, "tokenizer": {"kind": "char"}})
    stage.run(settings, model, out=out, report=Report(tmp_path / "work"), seed=0)
    quarantine = [json.loads(line) for line in (out / "report/quarantine.jsonl").read_text().splitlines()]
    return (
        list(dataset.iter_problems(out / "train.parquet")),
        quarantine,
        json.loads((out / "report/card.json").read_text()),
    )


def test_one_curate_over_all_hostile_lines(tmp_path, caplog):
    caplog.set_level("INFO")
    good = [json.dumps({"prompt": f"question {i}", "answer": str(i)}).encode() for i in range(len(JSON_LINES))]
    both = [line for (raw, _), fine in zip(JSON_LINES.values(), good, strict=True) for line in (raw, fine)]
    kept, quarantine, card = curate(tmp_path, *both)
    faults = [expected for _, expected in JSON_LINES.values() if expected[0] is RowError]
    faults.remove(bad("row", "the row is too long"))  # short enough for this file's limit
    assert {p.answer for p in kept} >= {str(i) for i in range(len(good))}
    assert [(q["field"], q["reason"]) for q in quarantine] == [fault[1:] for fault in faults]
    assert [q["line"] for q in quarantine] == [
        2 * i + 1 for i, (_, e) in enumerate(JSON_LINES.values()) if e in faults and e[2] != "the row is too long"
    ]
    assert {q["file"] for q in quarantine} == {"rows.jsonl"} and all(len(q["sample"]) <= 300 for q in quarantine)
    assert card["rows"]["quarantined"] == len(faults) == sum(card["quarantine_reasons"].values())
    assert card["quarantine_reasons"]["row: nested too deeply"] == 5
    assert "× row: nested too deeply" in (tmp_path / "out" / "report/card.md").read_text()
    summaries = [line for line in caplog.messages if line.startswith("quarantined ")]
    assert len(summaries) == 1 and f"quarantined {len(faults)} of {len(both)} rows: " in summaries[0]


def test_all_rows_quarantined_shows_the_three_commonest_reasons(tmp_path):
    raw = [b"{"] * 4 + [b"3"] * 3 + [b'{"prompt": "q"}'] * 2 + [b'{"answer": "4"}']
    with pytest.raises(DataError) as caught:
        curate(tmp_path, *raw)
    assert (
        "all 10 rows were quarantined: 4 × row: not JSON; 3 × row: not a JSON object; 2 × answer: the row has no answer; ..."
        in str(caught.value)
    )
    assert "The first is rows.jsonl:1: row: not JSON" in str(caught.value)


def test_uids_of_the_file_are_used_and_repeats_quarantined(tmp_path):
    raw = [
        json.dumps({"prompt": f"q{i}", "answer": "4", "id": uid}).encode() for i, uid in enumerate(["a", 7, "a", "7"])
    ]
    kept, quarantine, _ = curate(tmp_path, *raw, columns={"uid": "id"})
    assert [p.uid for p in kept] == ["a", "7"]
    assert [(q["line"], q["field"], q["reason"]) for q in quarantine] == [
        (3, "uid", "another row has the same uid"),
        (4, "uid", "another row has the same uid"),
    ]


@pytest.mark.parametrize("rows_before", [0, 1500])
def test_a_named_column_that_no_row_has_is_an_error(tmp_path, rows_before):
    raw = [json.dumps({"text": f"q{i}", "gold": "4"}).encode() for i in range(rows_before + 1)]
    with pytest.raises(
        DataError, match=r"columns\.prompt: .*rows\.jsonl has no column 'txt'\. Its columns: text, gold\."
    ):
        curate(tmp_path, *raw, columns={"prompt": "txt", "answer": "gold"})
    with pytest.raises(DataError, match=r"columns\.uid: .* has no column 'id'"):
        curate(tmp_path, *raw, columns={"prompt": "text", "answer": "gold", "uid": "id"})


def test_a_named_column_that_some_rows_lack_costs_those_rows(tmp_path):
    kept, quarantine, _ = curate(
        tmp_path, b'{"text": "a", "answer": "4"}', b'{"answer": "4"}', columns={"prompt": "text"}
    )
    assert [p.prompt[-1]["content"] for p in kept] == ["a"]
    assert quarantine[0]["reason"] == "the row lacks the column"
