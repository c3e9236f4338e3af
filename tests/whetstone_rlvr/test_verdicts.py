"""`verify` gives what `whetstone verify` gives, for frames and lists."""

from __future__ import annotations

import json

import pandas as pd
import plugin_toys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.cli import verify as command
from whetstone_rlvr import UserError, verify

ROWS = [
    {"completion": "#### 7", "answer": "7", "id": 1},
    {"completion": "#### 8", "answer": "7", "score": "mine"},
    {"completion": "\\boxed{x+1}", "answer": "1+x", "verifier": "math"},
    {"completion": "7", "answer": 7, "info": None},
    {"completion": "7"},
    {"completion": 7, "answer": "7"},
    {"completion": "7", "answer": "7", "verifier": "numbr"},
    {"completion": "7", "answer": "7", "info": "x"},
    [1],
]
PLUGIN = """
import sys
from pipelines.verifiers import Verdict

def verify(completion, answer, info):
    return Verdict(%s, "correct")

PARTS = {"verifiers": {"generous": sys.modules[__name__]}}
"""


def as_command(folder, rows):
    """The lines that the command writes."""
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command.score_file(str(folder / "in.jsonl"), str(folder / "out.jsonl"), "number", None)
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def told(frame):
    """The rows of a frame without what they do not have."""
    return [{k: v for k, v in row.items() if isinstance(v, dict) or not pd.isna(v)} for row in frame.to_dict("records")]


def test_it_gives_what_the_command_gives(tmp_path):
    frame = verify(ROWS, verifier="number")
    lines = [{k: v for k, v in line.items() if v is not None} for line in as_command(tmp_path, ROWS)]
    assert told(frame) == lines and len(frame) == len(ROWS)
    assert frame["status"].tolist() == ["correct", "incorrect", "correct", "correct", *["bad_row"] * 5]
    assert "Did you mean 'number'?" in frame["error"][6]


def test_a_frame_is_its_rows():
    """What a row lacks is a gap in a frame, whatever pandas writes there; its index is no part of it."""
    frame = pd.DataFrame(ROWS[:5], index=list("vwxyz"))
    assert told(verify(frame, "number")) == told(verify(ROWS[:5], "number"))
    assert verify(frame, "number")["score"].tolist()[:4] == [1.0, 0.0, 1.0, 1.0]
    assert verify([], "number").columns.tolist() == ["line", "verifier", "score", "status", "components"]


@given(numbers=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_a_verdict_for_each_row_in_order(numbers):
    frame = verify([{"completion": f"#### {a}", "answer": b, "at": i} for i, (a, b) in enumerate(numbers)], "number")
    assert frame["score"].tolist() == [float(a == b) for a, b in numbers]
    assert frame["line"].tolist() == [*range(1, len(numbers) + 1)]


def test_a_verifier_of_somebodys_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with plugin_toys.forgotten():
        for score in (0.25, 0.75):  # a file that changes is read again
            (tmp_path / "own.py").write_text(PLUGIN % score)
            assert verify(ROWS[:1], "generous", plugins=["own.py"])["score"].tolist() == [score]
        assert verify(ROWS[:1], "generous", plugins="own.py")["verifier"].tolist() == ["generous"]


def test_what_cannot_be():
    with pytest.raises(UserError, match=r"verifier numbr: unknown verifier. Did you mean 'number'\?"):
        verify(ROWS, "numbr")
    with pytest.raises(UserError, match=r"there is no file nowhere\.py"):
        verify(ROWS, plugins=["nowhere.py"])
    assert "names no verifier" in verify(ROWS[:1])["error"][0]
