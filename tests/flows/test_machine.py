"""Errors and results for machines, exit codes, and a reader that leaves before the end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import toys

from flows import machine
from flows.progress import Lines
from pipelines.errors import DataError, RecipeError
from tasks.process import StageFailed


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RecipeError("rlvr.steps: -1 is below 1. Choose more."), ("recipe", "rlvr.steps", "Choose more.")),
        (DataError("data/train.jsonl: line 3 is no JSON"), ("data", "data/train.jsonl", None)),
        (RecipeError("--set rlvr.stepz=3: no such. Did you mean 'steps'?"), ("recipe", "--set rlvr.stepz=3", "Did you mean 'steps'?")),
        (StageFailed("the stage ended with exit code 7"), ("stage", None, None)),
        (StageFailed("train.jsonl: bad", 2, "data"), ("data", "train.jsonl", None)),
    ],
)  # fmt: skip
def test_errors_have_parts(error, expected):
    body = machine.describe(error)
    assert (body["kind"], body["field"], body["fix"]) == expected
    assert body["message"] == str(error)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["plan", "nosuch.yaml", "--json"], "recipe"),
        (["plan", "--json"], "usage"),
        (["run", "nosuch.yaml", "--json"], "recipe"),
        (["run", "nosuch.yaml", "--json", "--unknown"], "usage"),
    ],
)
def test_json_errors_leave_two_and_nothing_else(tmp_path, arguments, kind):
    done = toys.whetstone(*arguments, home=tmp_path, check=False)
    assert done.returncode == 2
    body = json.loads(done.stdout)
    assert body["error"]["kind"] == kind and set(body["error"]) == {"kind", "field", "message", "fix"}
    assert done.stderr == ""


def test_results_as_json(tmp_path):
    recipe = toys.recipe(tmp_path)
    planned = json.loads(toys.whetstone("plan", str(recipe), "--json", home=tmp_path / "home").stdout)
    assert [p["stage"] for p in planned] == ["curate", "sft", "rlvr", "evaluate"]


def test_a_reader_that_leaves():
    """`whetstone methods | head -1`: no traceback, and the command's own exit code."""
    command = f"{sys.executable} -m flows.cli methods --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=toys.ROOT, check=False)
    assert done.stdout.splitlines() == ["[", "0"]
    assert done.stderr == ""


def test_a_line_a_minute(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("flows.progress.time.monotonic", lambda: now[0])
    lines = Lines()
    for second in range(0, 200):
        now[0] = second
        lines("sft", {} if second < 5 else {"done": second, "total": 400, "unit": "step", "rate": 1.0})
    lines("sft", None)
    lines("sft", None)
    said = [line.split(maxsplit=1)[1] for line in capsys.readouterr().err.splitlines()]
    assert [" ".join(line.split()) for line in said] == [
        "sft started",
        "sft 60 of 400 steps, 1.00 steps/s, 5 min 40 s left",
        "sft 120 of 400 steps, 1.00 steps/s, 4 min 40 s left",
        "sft 180 of 400 steps, 1.00 steps/s, 3 min 40 s left",
        "sft ended after 3 min 19 s",
    ]
