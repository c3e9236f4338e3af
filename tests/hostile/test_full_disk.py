"""A disk that fills up while MLflow's database is made, or while a stage trains: one message, nothing half, and the run goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import toys

from pipelines.base.files import read_json

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


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own in memory, of a size as `mount` takes it."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk can be mounted by root only")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


@pytest.mark.parametrize("kilobytes", [64, 300])
def test_no_half_database(tmp_path, kilobytes):
    with small_disk(tmp_path, f"{kilobytes}k") as disk:
        env = toys.environment(WHETSTONE_HOME=str(disk / "home"))
        env.pop("MLFLOW_TRACKING_URI", None)
        done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=env, check=False)
        assert "SAID" in done.stdout and "MB free" in done.stdout and "Free space" in done.stdout, (
            done.stdout + done.stderr
        )
        assert not list((disk / "home").glob("*mlflow.db*")), "neither a half database nor its scraps"
        done = toys.whetstone("run", str(toys.recipe(tmp_path)), home=disk / "home", check=False)
        assert done.returncode == 2 and "is full" in done.stderr and "Traceback" not in done.stderr


def fill(path: Path) -> None:
    """Write a file until the disk has no byte left."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 6):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


def digests(home: Path) -> list[str]:
    """Of the SFT artifacts of a project folder."""
    return [read_json(folder / "manifest.json")["digest"] for folder in (home / "runs").glob("sft-*")]


@pytest.mark.long
@pytest.mark.server
@pytest.mark.timeout(1500)
def test_a_disk_that_fills_while_a_stage_trains(tmp_path):
    """The command ends within a minute with one message; with space again it continues from its last commit, to the same bytes."""
    recipe = toys.recipe(tmp_path)
    sets = ("--until", "sft", "--set", "sft.steps=150")
    toys.whetstone("run", str(recipe), *sets, home=tmp_path / "whole", timeout=600)
    with small_disk(tmp_path, "200m") as disk:
        home, log = disk / "home", tmp_path / "log"
        env = toys.environment(WHETSTONE_HOME=str(home))
        for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME"):
            env.pop(name, None)
        with open(log, "wb") as out:
            command = [sys.executable, "-m", "flows.cli.main", "run", str(recipe), *sets]
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        try:
            while not list((home / "runs" / ".work").glob("sft-*/checkpoints/LATEST.json")):
                assert process.poll() is None, log.read_text()
                time.sleep(0.02)
            fill(disk / "ballast")
            assert process.wait(timeout=60) == 2
        finally:
            process.kill()
        said = log.read_text()
        assert "Traceback" not in said, said
        assert "could not be written: the disk is full" in said and "the previous commit is intact" in said
        [latest] = (home / "runs" / ".work").glob("sft-*/checkpoints/LATEST.json")
        assert 0 < read_json(latest)["step"] < 150 and not digests(home)
        (disk / "ballast").unlink()
        toys.whetstone("run", str(recipe), *sets, home=home, timeout=600)
        [spool] = (home / "runs").glob("sft-*/report/spool.jsonl")
        assert "resumed from a commit" in spool.read_text()
        assert digests(home) == digests(tmp_path / "whole") != []
