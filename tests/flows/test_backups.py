"""The commands of docs/operations.md for a backup and its restoration: pasted while a run writes, and after everything is gone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time

import deployed
import pytest
import toys

PAGE = (toys.ROOT / "docs" / "operations.md").read_text()
BACKUP, RESTORE = re.findall(
    r"^```\n(.*?)^```$", PAGE.partition("### On SQLite")[2].partition("\n## ")[0].partition("###")[0], re.M | re.S
)


def shell(block: str, folder, env) -> None:
    done = subprocess.run(["bash", "-euc", block], cwd=folder, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_backup_taken_while_a_run_writes_is_a_store_to_go_on_with(tmp_path):
    home, recipe = tmp_path / ".whetstone", toys.recipe(tmp_path)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "whetstone"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m flows.cli.main "$@"\n')
    command.chmod(0o755)
    here = {"WHETSTONE_HOME": str(home), "PYTHONPATH": str(toys.ROOT), "PATH": f"{command.parent}:{os.environ['PATH']}"}
    env = {
        name: value for name, value in os.environ.items() if name not in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL")
    } | here
    toys.whetstone("run", str(recipe), "--summary", str(tmp_path / "first.json"), home=home)
    first = json.loads((tmp_path / "first.json").read_text())
    writing = subprocess.Popen(
        [command, "run", recipe, "--set", "rlvr.advantage=rloo", "--set", "rlvr.steps=500"],
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not list(home.glob("runs/.work/rlvr-*/checkpoints/LATEST.json")):
        assert writing.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    shell(BACKUP, tmp_path, env)
    assert writing.poll() is None, "it was under way"
    deployed.kill(writing)
    time.sleep(2)  # what it started ends by itself
    shutil.rmtree(home)
    home.mkdir()
    shell(RESTORE, tmp_path, env)

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    runs = client.search_runs(
        [e.experiment_id for e in client.search_experiments()], "tags.`whetstone.kind` = 'pipeline'"
    )
    assert sorted(run.info.status for run in runs) == ["FINISHED", "KILLED"], "the run under way was closed"
    run = first["parent_run_id"]
    compared = toys.whetstone("compare", f"{run}:sft", f"{run}:rlvr", "--json", home=home)
    assert len(json.loads(compared.stdout)["arms"]) == 2
    shutil.rmtree(home / "runs" / f"evaluate-{first['stages']['evaluate']['key']}")
    toys.whetstone("rerun", run, "--summary", str(tmp_path / "again.json"), home=home)
    again = json.loads((tmp_path / "again.json").read_text())
    assert {stage["status"] for stage in again["stages"].values()} == {"reused"}, "fetched from MLflow's files"
    told = toys.whetstone("promote", run, home=home, check=False)
    assert told.returncode == 2 and "6 problems were asked of both alike" in told.stderr, (
        "compared, and too few to decide"
    )
