"""Errors and results for machines, exit codes, and a reader that leaves before the end."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
import toys

from flows.cli import output
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
    body = output.describe(error)
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


def test_letters_that_the_reader_has_not():
    """Where the output's encoding lacks a letter, a question mark stands for it and the command goes on."""
    written = io.BytesIO()
    stream = output.PipeSafeStream(io.TextIOWrapper(written, encoding="ascii"))
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
