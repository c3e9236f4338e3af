"""`whetstone sweep` for real: runs side by side, a ranking, a second start that computes nothing, a stop."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import deployed
import pytest
import servers
import toys
from children import wait_until

GRID = ["--set", "rlvr.steps=2", "--set", "rlvr.advantage=grpo,rloo", "--jobs", "2"]


@pytest.mark.slow
def test_options_are_checked_before_anything_starts(tmp_path, home):
    recipe = str(toys.recipe(tmp_path))
    for options, message in (
        (["--jobs", "0"], "--jobs 0"),
        (["--presets", "dopa"], "no preset called 'dopa'"),
        (["--runner", "dask:tcp://127.0.0.1:1"], "need a Prefect server"),
        (["--runner", "treads"], "--runner treads: write threads, dask"),
        (["--runner", "ray"], "--runner ray: write threads, dask"),
        (["--runner", "ray:10.0.0.1:6379"], "needs prefect-ray"),
    ):
        done = toys.whetstone("sweep", recipe, *options, home=home, check=False, first=True)
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert not done.stdout, "the plan comes after the checks"
    assert not (home / "mlflow.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_sweep_shares_stages_ranks_its_runs_and_reuses_them(tmp_path, home, seeds):
    recipe = str(toys.recipe(tmp_path))
    number = ["--seeds", str(seeds)]
    first = toys.whetstone(
        "sweep", recipe, *GRID, *number, "--summary", str(tmp_path / "s.json"), home=home, timeout=900
    )
    body = json.loads((tmp_path / "s.json").read_text())
    assert {row["name"] for row in body["leaderboard"]} == {"rlvr.advantage grpo", "rlvr.advantage rloo"} and not body[
        "failed"
    ]
    assert all(row["seeds"] == [*range(seeds)] and len(row["by_seed"]) == seeds for row in body["leaderboard"])
    assert len({run for row in body["leaderboard"] for run in row["runs"]}) == 2 * seeds, "a pipeline run each"
    assert body["start"]["name"] == "sft" and "start (sft)" in first.stdout, "what all start from"
    stages = [path.name.partition("-")[0] for path in (home / "runs").glob("*-*")]
    assert sorted(stages) == ["curate", *["evaluate"] * (2 * seeds + 1), *["rlvr"] * (2 * seeds), "sft"], (
        "shared stages run once"
    )
    assert "whetstone compare experiment:toy-sweep" in first.stdout
    page = tmp_path / "s.md"
    options = [*number, "--json", "--markdown", str(page)]
    again = toys.whetstone("sweep", recipe, *GRID, *options, home=home, timeout=900)
    assert all(f"| {row['name']} |" in page.read_text() for row in body["leaderboard"])
    same = json.loads(again.stdout)["leaderboard"]
    assert [row["by_seed"] for row in same] == [row["by_seed"] for row in body["leaderboard"]]
    assert len(list((home / "runs").glob("*-*"))) == len(stages), "nothing was computed again"
    compared = json.loads(toys.whetstone("compare", "experiment:toy-sweep", "--json", home=home).stdout)
    assert sorted(len(arm["runs"]) for arm in compared["arms"]) == [1, seeds, seeds], (
        "seeds are one arm, and the start is another"
    )


@pytest.mark.slow
@pytest.mark.long
def test_a_split_budget_is_spent_and_drawn(tmp_path, home):
    """3,072 tokens at 512 a step: a third is 2 SFT steps; RLVR stops with the step that spends its part."""
    options = [
        "--budget",
        "3072tokens",
        "--split",
        "0.3334,0.8",
        "--set",
        "rlvr.steps=40",
        "--html",
        str(tmp_path / "s.html"),
    ]
    done = toys.whetstone("sweep", str(toys.recipe(tmp_path)), *options, "--json", home=home, timeout=900)
    body = json.loads(done.stdout)
    rows = {row["name"]: row for row in body["leaderboard"]}
    assert set(rows) == set(body["shares"]) == {"33.34 % SFT", "80 % SFT"} and not body["failed"]
    steps = {json.loads(path.read_text())["numbers"]["steps"] for path in (home / "runs").glob("sft-*/manifest.json")}
    assert steps == {2, 5}
    little, much = (rows[name]["cost"]["tokens"] for name in ("80 % SFT", "33.34 % SFT"))
    assert 614 <= little < 614 + 128 and 2048 <= much < 2048 + 128, "at most a step of 16 rows x 8 tokens more"
    assert "% of the budget spent on SFT" in (tmp_path / "s.html").read_text()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
def test_a_sweep_on_two_machines(tmp_path):
    """Two Dask workers with project folders of their own: each runs a part, and what they share comes from MLflow."""
    pytest.importorskip("prefect_dask", reason="no Dask: pip install prefect-dask")
    site = deployed.Deployed(tmp_path)
    recipe, scheduler = str(toys.recipe(tmp_path)), f"tcp://127.0.0.1:{servers.free_port()}"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", scheduler, "--no-dashboard"]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, "--nthreads", "1", "--no-dashboard"]
    with contextlib.ExitStack() as stack:
        stack.callback(site.stop)
        site.start()
        stack.enter_context(servers.running(dask, tmp_path / "scheduler.log", None, **site.env))
        for name in ("a", "b"):
            env = site.env | {"WHETSTONE_HOME": str(tmp_path / name)}
            command = [*worker, "--name", name, "--local-directory", str(tmp_path)]
            stack.enter_context(servers.running(command, tmp_path / f"{name}.log", None, **env))
        options = [
            "--set",
            "rlvr.steps=2",
            "--set",
            "rlvr.advantage=grpo,rloo",
            "--runner",
            f"dask:{scheduler}",
            "--json",
        ]
        env = {k: v for k, v in site.env.items() if k != "WHETSTONE_HOME"}
        done = toys.whetstone("sweep", recipe, *options, home=tmp_path / "head", timeout=900, **env)
    body = json.loads(done.stdout)
    assert {row["name"] for row in body["leaderboard"]} == {"rlvr.advantage grpo", "rlvr.advantage rloo"} and not body[
        "failed"
    ]
    assert not list((tmp_path / "head" / "runs").glob("*-*")), "the machine of the sweep computes nothing"
    made = [json.loads(p.read_text())["run_id"] for p in tmp_path.glob("[ab]/runs/sft-*/manifest.json")]
    assert len(made) == 2 and len(set(made)) == 1, "one worker made the SFT checkpoint, the other fetched it"
    assert [len(list((tmp_path / name / "runs").glob("rlvr-*"))) for name in ("a", "b")] == [1, 1]


@pytest.mark.slow
@pytest.mark.long
def test_every_variant_is_tuned_and_a_failure_leaves_the_others(tmp_path, home):
    (tmp_path / "fails.py").write_text(
        "def score(completions, trainer_state, **rest):\n    if trainer_state.global_step == 0:\n"
        "        return [0.0] * len(completions)\n    raise ValueError('no score today')\n"
    )
    recipe = str(toys.recipe(tmp_path))
    options = ["--set", "rlvr.reward_functions=[],['fails:score']", "--tune-full"]
    options += ["--tune", "rlvr.optimizer.learning_rate=1e-5,1e-3"]
    environment = {"PYTHONPATH": f"{toys.ROOT}{os.pathsep}{tmp_path}"}
    done = toys.whetstone("sweep", recipe, *options, "--json", home=home, timeout=900, check=False, **environment)
    assert done.returncode == 1, done.stderr[-3000:]
    body = json.loads(done.stdout)
    assert [row["name"] for row in body["leaderboard"]] == ["rlvr.reward_functions none"]
    (failure,) = body["failed"].values()
    assert "no score today" in failure or "fails:score" in failure
    assert set(body["tuned"]) == {"rlvr.reward_functions none", "rlvr.reward_functions fails:score"}
    assert set(body["tuned"].values()) <= {"1e-5", "1e-3"} and "trial 2/4" in done.stderr
    ended = [json.loads(path.read_text())["numbers"]["steps"] for path in (home / "runs").glob("rlvr-*/manifest.json")]
    assert len(ended) == 3 and len(set(ended)) == 1, "two trials and the ranked run, equally long"


@pytest.mark.slow
@pytest.mark.long
def test_a_stop_ends_the_stages_of_all_runs(tmp_path, home):
    recipe = str(toys.recipe(tmp_path))
    toys.whetstone("run", recipe, "--until", "sft", home=home, timeout=600)
    command = [sys.executable, "-m", "flows.cli.main", "sweep", recipe, "--set", "rlvr.steps=5000", *GRID[2:]]
    environment = toys.environment(WHETSTONE_HOME=str(home))
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    jobs = home / "runs" / ".work"
    until = time.monotonic() + 300
    while sum((work / "spool.jsonl").exists() for work in jobs.glob("rlvr-*")) < 2:
        assert running.poll() is None and time.monotonic() < until, running.stderr.read()[-3000:]
        time.sleep(0.2)
    assert len(stages_of(home)) >= 2
    running.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130 and "stopped by SIGINT" in told, told[-3000:]
    assert time.monotonic() - began < 20
    wait_until(lambda: not stages_of(home))


def stages_of(home):
    """Processes of stages below a home."""
    listing = subprocess.run(["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True, check=True).stdout
    return re.findall(rf"^\s*(\d+) .*pipelines\.stage\.launch.*{re.escape(str(home))}", listing, flags=re.M)
