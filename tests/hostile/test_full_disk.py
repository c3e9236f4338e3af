"""A disk that fills up while MLflow's database is made: one message, and no half database."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import toys

pytestmark = [pytest.mark.hostile, pytest.mark.slow]
CODE = """
from tasks import environment
environment.prepare()
from tasks.tracking import api as tracking
from tasks.tracking.time_budget import TrackerUnavailable
try:
    tracking.experiment("e")
    with tracking.mlflow_errors():
        tracking.client()
except Exception as error:
    from tasks.tracking.client import sort
    print("SAID", type(error).__name__, sort(error))
"""


@pytest.mark.parametrize("kilobytes", [64, 300])
def test_no_half_database(tmp_path, kilobytes):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk can be mounted by root only")
    try:
        env = toys.environment(WHETSTONE_HOME=str(disk / "home"))
        env.pop("MLFLOW_TRACKING_URI", None)
        done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=env, check=False)
        assert "SAID" in done.stdout and "MB free" in done.stdout and "Free space" in done.stdout, (
            done.stdout + done.stderr
        )
        assert not list((disk / "home").glob("*mlflow.db*")), "neither a half database nor its scraps"
        done = toys.whetstone("run", str(toys.recipe(tmp_path)), home=disk / "home", check=False)
        assert done.returncode == 2 and "is full" in done.stderr and "Traceback" not in done.stderr
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
