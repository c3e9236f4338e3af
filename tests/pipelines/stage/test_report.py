"""Spools: half lines are cut, foreign lines are counted and passed over, a full disk leaves whole lines."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.stage.report import SPOOL, VISIBLE, Report, cut_half_line, lines_of, visible_lines


def good(folder, offset=0):
    return [line["step"] for _, line in visible_lines(folder, offset) if line["kind"] == "metrics"]


def test_half_a_line_is_cut_off_when_the_stage_starts_again(tmp_path):
    first = Report(tmp_path)
    first.metrics(1, {"a": 1.0})
    with open(tmp_path / SPOOL, "ab") as handle:
        handle.write(b'{"kind": "met')
    again = Report(tmp_path)
    again.metrics(2, {"a": 2.0})
    assert good(tmp_path) == [1, 2]
    assert all(line["kind"] == "metrics" for _, line in visible_lines(tmp_path, 0))


@given(st.binary(max_size=300), st.integers(0, 20))
def test_no_bytes_stop_the_forwarder(tmp_path_factory, junk, offset):
    folder = tmp_path_factory.mktemp("s")
    line = json.dumps({"kind": "metrics", "step": 7, "time": 1, "values": {"a": 1.0}}).encode() + b"\n"
    (folder / SPOOL).write_bytes(junk + b"\n" + line)
    (folder / VISIBLE).write_text(str(10_000))
    assert good(folder) and good(folder)[-1] == 7
    assert good(folder, offset + 1_000_000)[-1] == 7, "an offset past the end starts over"
    list(visible_lines(folder, offset))
    assert [b["step"] for b in lines_of(folder / SPOOL) if b["kind"] == "metrics"][-1] == 7


@pytest.mark.parametrize(
    "line",
    ["null", "[]", '"x"', "{}", '{"kind": 3}', '{"kind": "metrics"}', "[" * 5000,
     '{"kind": "metrics", "step": "1", "time": 1, "values": {}}', '{"kind": "metrics", "step": 1, "time": 1, "values": []}',
     '{"kind": "metrics", "step": 1, "time": 1, "values": {"a": "b"}}', '{"kind": "metrics", "step": 1, "time": 1, "values": {"a": NaN}}',
     '{"kind": "metrics", "step": 1, "time": true, "values": {}}',
     '{"kind": "metrics", "step": 1' + "0" * 40 + ', "time": 1, "values": {}}'],
)  # fmt: skip
def test_a_line_of_another_shape_is_broken(tmp_path, line):
    (tmp_path / SPOOL).write_text(line + "\n")
    (tmp_path / VISIBLE).write_text("100000")
    assert [body["kind"] for _, body in visible_lines(tmp_path, 0)] == ["broken"]


def test_rewind_past_the_end_adds_no_bytes(tmp_path):
    report = Report(tmp_path, committed=True)
    report.metrics(1, {"a": 1.0})
    size = report.cursor()
    report.rewind(size + 500)
    assert (tmp_path / SPOOL).stat().st_size == size and good(tmp_path) == [1]


@given(st.binary(max_size=50), st.integers(0, 200_000))
def test_cut_back_to_the_last_newline(tmp_path_factory, head, tail):
    path = tmp_path_factory.mktemp("c") / "f"
    path.write_bytes(head + b"x" * tail)
    cut_half_line(path)
    kept = path.read_bytes()
    assert kept == (head + b"x" * tail)[: len(kept)] and (not kept or kept.endswith(b"\n"))
    assert b"\n" not in (head + b"x" * tail)[len(kept) :]


FILL = """
import json, os, resource, signal, sys
from pathlib import Path
from pipelines.stage import process
from pipelines.base.files import write_atomic
from pipelines.stage.report import Report
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])

def work(job, folder):
    report = Report(folder)
    for step in range(50):
        write_atomic(folder / "commit.json", json.dumps({"step": step, "fill": "x" * step * 10}))
        report.metrics(step, {"loss": 1.0})
    return {}

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
process.main(work, [str(folder)])
"""


@pytest.mark.slow
def test_a_disk_full_at_any_byte_is_one_message(tmp_path):
    """The file-size limit stands for the disk: every write past it fails or is cut short, as on a full one."""
    (tmp_path / "fill.py").write_text(FILL)
    for limit in (130, 131, 170, 200, 333, 400):
        folder = tmp_path / str(limit)
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps({"stage": "curate", "parent_pid": os.getpid()}))
        done = subprocess.run(
            [sys.executable, str(tmp_path / "fill.py"), str(folder), str(limit)],
            capture_output=True, text=True, env=toys.environment(), check=False,
        )  # fmt: skip
        assert done.returncode == 3, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        said = done.stdout + done.stderr
        assert str(folder) in said and "MB free" in said and "Free space" in said
        assert json.loads((folder / "commit.json").read_text())["step"] >= 0
        raw = (folder / SPOOL).read_bytes()
        assert raw.endswith(b"\n") or not raw
        assert not list(folder.glob(".commit.json.*")), "nothing half written is left"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
