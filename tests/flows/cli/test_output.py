"""Errors and results for machines, exit codes, and a reader that leaves before the end."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
import toys

from flows.cli import output
from pipelines.base.errors import DataError, Problem, RecipeError
from tasks.preflight.check import NotReady
from tasks.process import StageFailed


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RecipeError("rlvr.steps", "-1 is below 1", "Choose more."), ("recipe", "rlvr.steps", "Choose more.")),
        (RecipeError("rlvr.steps", "no value (e.g. None)", "See x."), ("recipe", "rlvr.steps", "See x.")),
        (RecipeError("a: sentence. It names nothing."), ("recipe", None, None)),
        (DataError("data/train.jsonl", "line 3 is no JSON"), ("data", "data/train.jsonl", None)),
        (DataError("a: b.jsonl", "line 3 is no JSON", fix="Mend it."), ("data", "a: b.jsonl", "Mend it.")),
        (RecipeError("--set rlvr.stepz=3", "no such", "Did you mean 'steps'?"), ("recipe", "--set rlvr.stepz=3", "Did you mean 'steps'?")),
        (StageFailed("the stage ended with exit code 7"), ("stage", None, None)),
        (StageFailed("", 2, "data", problems=[Problem("train.jsonl", "bad")]), ("data", "train.jsonl", None)),
        (KeyError("x: y. z"), ("key", None, None)),
    ],
)  # fmt: skip
def test_errors_have_parts(error, expected):
    body = output.describe(error)["error"]
    assert (body["kind"], body["field"], body["fix"]) == expected
    assert body["message"] == str(error)


def test_a_stage_that_a_signal_has_killed_says_which():
    body = output.describe(StageFailed("the stage ended with killed by signal 9.", signal=9))
    assert body["error"]["signal"] == 9 and "signal" not in output.describe(StageFailed("exit code 7"))["error"]


def test_many_problems_are_as_many_records_without_secrets():
    problems = [
        Problem("a", "no answer from https://ann:pw@host/x", "Start it."),
        Problem("b.0", "twice: once is enough"),
    ]
    body = output.describe(NotReady(problems))
    assert body["problems"] == [
        {"field": "a", "problem": "no answer from https://***@host/x", "fix": "Start it."},
        {"field": "b.0", "problem": "twice: once is enough", "fix": ""},
    ]
    assert body["error"]["field"] is None and body["error"]["fix"] is None
    assert body["error"]["message"].splitlines()[0] == "2 problems"


@pytest.mark.slow
def test_a_recipe_with_three_mistakes_has_a_record_of_each_with_what_the_validator_reported(tmp_path):
    recipe = toys.recipe(tmp_path)
    changes = ("rlvr.steps=-1", "rlvr.stepz=3", "curate=true")
    done = toys.whetstone(
        "plan", str(recipe), *(w for c in changes for w in ("--set", c)), "--json", home=tmp_path, check=False
    )
    records = {each["field"]: each for each in json.loads(done.stdout)["problems"]}
    assert done.returncode == 2 and set(records) == {"rlvr.steps", "rlvr.stepz", "curate"}
    assert records["rlvr.stepz"]["fix"] == "Did you mean 'steps'?" and records["curate"]["fix"].startswith("Write {}")
    assert records["rlvr.steps"]["reported"] == {
        "type": "greater_than_equal",
        "loc": ["rlvr", "steps"],
        "ctx": {"ge": 1},
    }


@pytest.mark.slow
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
    assert [set(each) for each in body["problems"]] == [{"field", "problem", "fix"}]
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


@pytest.mark.slow
def test_a_reader_that_leaves():
    """`whetstone methods | head -1`: no traceback, and the command's own exit code."""
    command = f"{sys.executable} -m flows.cli.main methods --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=toys.ROOT, check=False)
    assert done.stdout.splitlines() == ["[", "0"]
    assert done.stderr == ""
