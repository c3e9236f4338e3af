"""Errors and results for machines, exit codes, and a reader that leaves before the end."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
import toys

from flows.cli import machine, stopping
from flows.cli import main as cli
from flows.progress import Lines
from pipelines.base.errors import DataError, RecipeError
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plam"], "argument COMMAND: there is no 'plam'. Did you mean 'plan'?"),
        (["plan", "x.yaml", "--untill", "sft"], "Did you mean '--until'?"),
        (["systems", "--status", "in-part"], "Did you mean 'in part'?"),
        (["plan", "x.yaml", "--memory", "--limit", "nan"], "argument --limit: nan: a number above 0."),
        (["plan", "x.yaml", "--memory", "--limit", "-3"], "argument --limit: -3: a number above 0."),
        (["plan", "x.yaml", "--memory", "--prompt-tokens", "0"], "argument --prompt-tokens: 0 is not between 1 and"),
        (["plan", "x.yaml", "--limit", "3"], "--limit, --prompt-tokens: they say how --memory counts. Add --memory."),
        (["runs", "--limit", "-1"], "argument --limit: -1 is not between 1 and"),
        (["runs", "--limit", "all"], "argument --limit: 'all' is not a whole number."),
        (["deploy", "--gpus", "0"], "argument --gpus: 0 is not between 1 and"),
        (["promote", "x", "--ask", "--ask-hours", "-1"], "argument --ask-hours: -1: a number above 0."),
        (["rubric", "x.yaml", "y.jsonl", "--most", "0"], "argument --most: 0 is not between 1 and"),
        (["compare", "a", "b", "--html", "."], "--html: . is a folder"),
        (["lineage", "a", "--html", "nosuch/x.html"], "--html: there is no folder nosuch"),
        (["overoptimisation", "a", "--html", "nosuch/x.html"], "--html: there is no folder nosuch"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_before_anything_is_read(home, monkeypatch, capsys, arguments, said):
    monkeypatch.setattr(stopping, "install", lambda: None)  # of pytest's own process
    monkeypatch.setattr(stopping, "exit_code", None)
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # put back afterwards
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setattr(sys, "argv", ["whetstone", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not home.exists()


def test_letters_that_the_reader_has_not():
    """Where the output's encoding lacks a letter, a question mark stands for it and the command goes on."""
    written = io.BytesIO()
    stream = machine.Patient(io.TextIOWrapper(written, encoding="ascii"))
    stream.write("sft → rlvr")
    stream.flush()
    assert written.getvalue() == b"sft ? rlvr"


@pytest.mark.slow
def test_results_as_json(tmp_path):
    recipe = toys.recipe(tmp_path)
    planned = json.loads(toys.whetstone("plan", str(recipe), "--json", home=tmp_path / "home").stdout)
    assert [p["stage"] for p in planned] == ["curate", "sft", "rlvr", "evaluate"]


def test_a_reader_that_leaves():
    """`whetstone methods | head -1`: no traceback, and the command's own exit code."""
    command = f"{sys.executable} -m flows.cli.main methods --json | head -1; echo ${{PIPESTATUS[0]}}"
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
