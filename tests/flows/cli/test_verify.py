"""`whetstone verify`: every line has its verdict, bad ones say why, and memory does not grow with the file."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys

import plugin_toys
import pytest
import toys

from flows.cli import verify
from pipelines.base.errors import UserError

HOME = toys.ROOT / ".whetstone"


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def verdict_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def row(completion="#### 7", answer="7", **more):
    return {"completion": completion, "answer": answer, **more}


def test_a_verifier_is_named_by_where_it_is(tmp_path, monkeypatch, capsys):
    """As in a recipe: a file, one function of several in it, or a module of the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_verifiers.py").write_text(
        "from pipelines.verifiers import Verdict\n\n\n"
        "def verify(completion, answer, info):\n    return Verdict(float(completion == answer), 'correct')\n\n\n"
        "def length(completion, answer, info):\n    return Verdict(float(len(completion)), 'correct')\n"
    )
    rows = write(tmp_path / "rows.jsonl", [row("abc", "abc"), row("ab", "abc"), row("7", "7", verifier="number")])
    with plugin_toys.forgotten():
        for named, scores in (
            ("./my_verifiers.py", [1, 0, 1]), ("my_verifiers.py:verify", [1, 0, 1]), ("my_verifiers.py:length", [3, 2, 1]),
            ("my_verifiers:length", [3, 2, 1]),
        ):  # fmt: skip
            verify.score_file(str(rows), "out.jsonl", named, None)
            assert [each["score"] for each in verdict_lines(tmp_path / "out.jsonl")] == scores, named
        for named, words in (
            ("./not_there.py", "--verifier ./not_there.py: there is no file ./not_there.py"),
            ("my_verifiers.py:lenght", "--verifier my_verifiers.py:lenght: my_verifiers.py has no lenght"),
            ("not_there:verify", "--verifier not_there:verify: there is no module 'not_there'"),
        ):
            with pytest.raises(UserError) as caught:
                verify.score_file(str(rows), "out.jsonl", named, None)
            assert str(caught.value).startswith(words)


BAD = [
    ('{"completion": "7"}', "has no answer"),
    ('{"completion": 7, "answer": "7"}', "completion is int"),
    ('{"completion": "7", "answer": "7", "verifier": "numbr"}', "Did you mean 'number'?"),
    ('{"completion": "7", "answer": "7", "verifier": ["x"]}', "verifier is list"),
    ('{"completion": "7", "answer": "7", "info": "x"}', "info is str"),
    ('{"completion": "7", "answer": "7", "verifier": "reasoning_gym", "info": {"task": "composite"}}', "composite"),
    ("[1]", "not a JSON object"),
    ('{"completion": NaN}', "NaN"),
    ('{"completion": ' + "9" * 5000 + "}", "not JSON"),
    ("[" * 100_000, "nested too deeply"),
    ("not json", "not JSON"),
]


def test_every_line_has_its_verdict(tmp_path, capsys):
    rows = [row(id=i) for i in range(5)]
    rows += [text for text, _ in BAD]
    rows += ["", row("\ud800 #### 8", score="mine"), row("x\0 #### 7", 7), row("\\boxed{x+1}", "1+x", verifier="math")]
    out = tmp_path / "out.jsonl"
    summary = verify.score_file(str(write(tmp_path / "in.jsonl", rows)), str(out), "number", 2)
    lines = verdict_lines(out)
    assert [line["id"] for line in lines[:5]] == list(range(5))
    for line, (_, why) in zip(lines[5 : 5 + len(BAD)], BAD, strict=True):
        assert line["status"] == "bad_row" and line["score"] is None and why in line["error"]
    assert [line["status"] for line in lines[-3:]] == ["incorrect", "correct", "correct"]
    assert lines[-3]["input_score"] == "mine" and lines[-3]["score"] == 0.0
    assert lines[-1]["line"] == len(rows), "a blank line has a number and no verdict"
    assert summary.rows == len(rows) - 1 and summary.statuses["bad_row"] == len(BAD) and summary.scored == 8
    assert "line 6: has no answer" in capsys.readouterr().err


def test_rows_are_scored_in_chunks_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "CHUNK_ROWS", 7)
    monkeypatch.setattr(verify, "LINE_BYTES", 200)
    rows = [row(f"#### {i}", str(i % 3), id=i) for i in range(40)]
    rows[20] = row("7" * 300)
    lines = verdict_lines_of(tmp_path, rows)
    assert [line["line"] for line in lines] == list(range(1, 41))
    assert [line["status"] for line in lines] == [
        "bad_row" if i == 20 else "correct" if i < 3 else "incorrect" for i in range(40)
    ]


def verdict_lines_of(tmp_path, rows):
    out = tmp_path / "out.jsonl"
    verify.score_file(str(write(tmp_path / "in.jsonl", rows)), str(out), "number", None)
    return verdict_lines(out)


def test_compressed_standard_and_damaged_input(tmp_path, monkeypatch):
    packed = gzip.compress(json.dumps(row()).encode() * 1)
    (tmp_path / "in.jsonl.gz").write_bytes(packed)
    out = str(tmp_path / "out.jsonl")
    assert verify.score_file(str(tmp_path / "in.jsonl.gz"), out, "number", None).statuses == {"correct": 1}
    (tmp_path / "cut.gz").write_bytes(packed[:-9])
    with pytest.raises(UserError, match="cannot be read"):
        verify.score_file(str(tmp_path / "cut.gz"), out, "number", None)
    (tmp_path / "bytes").write_bytes(b"\xef\xbb\xbf" + json.dumps(row()).encode() + b"\n\xff\n")
    assert verify.score_file(str(tmp_path / "bytes"), out, "number", None).statuses == {"correct": 1, "bad_row": 1}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(row()).encode())))
    assert verify.score_file("-", out, "number", None).rows == 1


@pytest.mark.parametrize(
    "source, out, verifier, jobs, why",
    [
        ("/nowhere.jsonl", None, None, None, "cannot be opened"),
        ("/tmp", None, None, None, "directory"),
        ("in", "in", None, None, "replace the input"),
        ("in", "/nowhere/out", None, None, "cannot be written"),
        ("in", None, "numbr", None, "number"),
        ("in", None, None, 0, "at least one"),
        ("in", None, None, 100_000, "--jobs 100000: each worker is a process .* Use at most"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, monkeypatch, source, out, verifier, jobs, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text("")
    with pytest.raises(UserError, match=why):
        verify.score_file(source, out, verifier, jobs)


@pytest.mark.slow
def test_the_command(tmp_path):
    path = write(tmp_path / "in.jsonl", [row(), row("8")])
    done = toys.whetstone("verify", str(path), "--verifier", "number", home=HOME)
    assert [json.loads(line)["score"] for line in done.stdout.splitlines()] == [1.0, 0.0]
    assert "correct 1" in done.stderr and "rows/s" in done.stderr
    out = tmp_path / "out.jsonl"
    done = toys.whetstone("verify", str(path), "--out", str(out), "--json", home=HOME, check=False)
    assert done.returncode == 2 and json.loads(done.stdout)["statuses"] == {"bad_row": 2}
    done = toys.whetstone("verify", str(path), "--json", home=HOME, check=False)
    assert done.returncode == 2 and "--out" in json.loads(done.stdout)["error"]["message"]


def test_the_command_imports_no_heavy_library():
    code = "import sys, flows.cli.main, flows.cli.verify; print({'torch', 'mlflow', 'prefect', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=toys.environment())
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
