"""A run from Python is the run of the command line: recorded, reused, interrupted; its results come as frames."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time

import databases
import homes
import pytest
import toys

from flows.cli import main
from tasks.store import index
from whetstone_rlvr import UserError, command, find_run, run

RUN = "c3" * 16
TOLD = {"error": {"kind": "x", "message": "wrong"}, "problems": [{"field": "", "problem": "wrong"}]}
UNFORESEEN = json.dumps(TOLD | {"error": {**TOLD["error"], "unforeseen": True}})
CELL = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 2}


def finished(**summary):
    """A finished run with two checkpoints, found again."""
    scores = {"base": {"sums": [[0, 1], [0, 0]]}, "rlvr": {"sums": [[1, 1], [1, 0]], "more": [[1]]}}
    homes.run(RUN, scores, name="mine", reward=(0.1, 0.2, 0.4))
    known = index.runs()[0]["summary"]
    index.end(RUN, "FINISHED", known | summary, {})
    return find_run("mine")


def test_what_a_finished_run_has_to_show(home):
    scores = {"base": {"sums": {"pass@1": CELL}}, "rlvr": {"sums": {"pass@1": CELL | {"value": 0.75}}}}
    steps = {"sums": {"base → rlvr": CELL | {"value": 0.25}}}
    mine = finished(evaluation=scores, differences=steps, recipe="mine", seed=0)
    assert (mine.run_id, mine.status, mine.recipe) == (RUN, "FINISHED", "mine")
    assert [(s.name, s.kind, s.status) for s in mine.stages.values()] == [
        ("rlvr", "rlvr", "ran"),
        ("evaluate", "evaluate", "ran"),
    ]
    assert mine.frame().to_dict("records") == [
        {"checkpoint": c, "task": "sums", "metric": "pass@1", **by["sums"]["pass@1"]} for c, by in scores.items()
    ]
    assert mine.differences().to_dict("records") == [
        {"task": "sums", "old": "base", "new": "rlvr", **CELL, "value": 0.25}
    ]
    assert mine.metrics("rlvr")[["step", "reward/mean"]].values.tolist() == [[1, 0.1], [2, 0.2], [3, 0.4]]
    assert mine.metrics("rlvr").equals(mine.metrics()) and mine.metrics("evaluate").columns.tolist() == [
        "stage",
        "step",
    ]
    assert mine.model == mine.stages["rlvr"].folder / "model" and mine.model.is_dir()
    assert "run c3c3" in repr(mine) and "75.0 % [25.0, 75.0]" in repr(mine)


def test_answers_by_checkpoint_and_task(home):
    mine = finished()
    assert len(mine.samples()) == 9 and len(mine.samples(task="more")) == 1 and mine.samples("nobody").empty
    base = mine.samples("base", "sums")
    assert base["score"].tolist() == [0, 1, 0, 0] and base["sample"].tolist() == [0, 1, 0, 1]
    assert base["question"].tolist() == ["question 0"] * 2 + ["question 1"] * 2 and base[
        "expected"
    ].unique().tolist() == ["7"]
    assert (
        base["answer"].tolist() == ["answer 0", "answer 1", "answer 0", "answer 0"] and base["problem"].nunique() == 2
    )
    assert mine.rollouts().columns.tolist() == ["stage", "step", "prompt", "completion", "score"]


def test_metrics_of_one_step_are_one_row(home):
    mine = finished()
    spool = mine.stages["rlvr"].folder / "report" / "spool.jsonl"
    with spool.open("a") as lines:
        lines.write(json.dumps({"kind": "metrics", "step": 3, "time": 2, "values": {"heldout/loss": 1.5}}) + "\n")
    frame = mine.metrics("rlvr")
    assert frame["step"].tolist() == [1, 2, 3] and frame["heldout/loss"].tolist()[2] == 1.5
    assert frame["reward/mean"].tolist() == [0.1, 0.2, 0.4] and frame["heldout/loss"].isna().tolist() == [
        True,
        True,
        False,
    ]


def test_what_is_not_there(home, tmp_path):
    mine = finished()
    with pytest.raises(UserError, match=r"stage 'rlrv': this run has no such stage. Did you mean 'rlvr'\?"):
        mine.metrics("rlrv")
    with pytest.raises(UserError, match="no run, model or experiment"):
        find_run("nobody")
    mine.stages["evaluate"].folder.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="neither here nor in MLflow"):
        mine.samples()
    with pytest.raises(UserError) as error:
        run(toys.recipe(tmp_path), until="rlrv")
    assert [p.field for p in error.value.problems] == ["until=rlrv"] and "Did you mean 'rlvr'?" in str(error.value)


def in_a_loop(*args, **kwargs):
    """`run` while an event loop runs in this thread, as in a notebook."""

    async def call():
        return run(*args, **kwargs)

    return asyncio.run(call())


@pytest.mark.slow
@pytest.mark.long
def test_runs_of_one_process(home, tmp_path, capfd):
    """With an event loop and without one; the command line finds their work and reuses it."""
    databases.prepare(home)
    path = toys.recipe(tmp_path)
    lines = []
    first = in_a_loop(path, {"rlvr.steps": 2}, until="sft", progress=lines.append)
    assert [s.status for s in first.stages.values()] == ["ran", "ran"] and first.frame().empty
    assert any("sft" in line and "ended after" in line for line in lines)
    whole = run(path, {"rlvr.steps": 2})
    assert [s.status for s in whole.stages.values()] == ["reused", "reused", "ran", "ran"]
    assert len(whole.rollouts()) > 0 and whole.rollouts().completion.notna().all()
    with pytest.raises(UserError, match="Did you mean 'grpo'") as error:
        run(path, {"rlvr.advantage": "grppo"})
    assert [problem.field for problem in error.value.problems] == ["rlvr.advantage"]
    assert {*whole.frame().checkpoint} == {"base", "sft", "rlvr"} and whole.metrics("rlvr")["step"].tolist() == [1, 2]
    again = in_a_loop(path, {"rlvr.steps": 2})
    assert {s.status for s in again.stages.values()} == {"reused"} and again.frame().equals(whole.frame())
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    with pytest.raises(SystemExit):
        main.main(["show", str(whole.run_id), "--json"])
    shown = json.loads(capfd.readouterr().out)
    assert shown["summary"]["evaluation"] == whole.summary["evaluation"] and again.run_id == whole.run_id


INTERRUPTED = """
import asyncio, os, signal, sys
from whetstone_rlvr import run

def progress(line):
    if "sft" in line and "started" in line:
        os.kill(os.getpid(), signal.Signals[sys.argv[2]])

async def main():
    try:
        done = run(sys.argv[1], until="sft", progress=progress if len(sys.argv) > 2 else None)
        print([s.status for s in done.stages.values()])
    except KeyboardInterrupt:
        print("interrupted")

signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.new_event_loop().run_until_complete(main())
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("signum", "code", "said"), [("SIGINT", 0, "interrupted"), ("SIGKILL", -9, "")])
def test_one_that_is_interrupted_goes_on(home, tmp_path, signum, code, said):
    """An interrupted notebook lives and its stage ends; with a notebook that is killed the run ends too. The same call continues."""
    databases.prepare(home)
    path = toys.recipe(tmp_path, sft={"steps": 400})

    def call(*words):
        return subprocess.run(
            [sys.executable, "-c", INTERRUPTED, str(path), *words], capture_output=True, text=True, timeout=300, check=False,
            env=toys.environment(WHETSTONE_HOME=str(home)), cwd=tmp_path,
        )  # fmt: skip

    stopped = call(signum)
    assert (stopped.returncode, stopped.stdout.strip()) == (code, said), stopped.stderr[-3000:]
    until = time.monotonic() + 30
    while index.runs()[0]["status"] == "RUNNING" and time.monotonic() < until:
        time.sleep(0.2)
    assert [r["status"] for r in index.runs()] == ["KILLED"]
    done = call()
    assert done.returncode == 0 and done.stdout.strip() == "['reused', 'ran']", done.stderr[-3000:]
    assert [r["status"] for r in index.runs()] == ["FINISHED"], "the stopped run was taken up again"


def test_a_command_that_ends_as_nobody_foresaw(home, monkeypatch):
    for code, printed, messages in ((1, "", "no"), (-9, "", ""), (0, "no JSON", ""), (1, UNFORESEEN, "wrong")):
        with pytest.raises(RuntimeError, match=rf"ended with code {code}\.\n{re.escape(messages)}"):
            command._result(code, printed, messages)
    with pytest.raises(UserError, match="wrong"):
        command._result(1, json.dumps(TOLD), "Traceback (most recent call last), of something else")
