"""Ranks of a stage: one in which memory ran out in a pass has all of them started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toys

from pipelines.stage import launch

RANK = """
import os, sys, time
from pathlib import Path

work, rank, halved = Path(sys.argv[1]), os.environ["RANK"], int(os.environ.get("WHETSTONE_HALVED", "0"))
meeting = Path(os.environ["WHETSTONE_STORE"].removeprefix("file:"))
open(meeting.with_name("met" + rank), "x").close()  # the place is a new one each time
(work / f"rank{rank}-{halved}").write_text(str(os.getpid()))
while not all((work / f"rank{each}-{halved}").exists() for each in range(2)):
    time.sleep(0.02)
if halved < int(os.environ["FITS_AT"]):
    if rank == "1":
        os._exit(75)
    time.sleep(600)  # as in a pass that the other one never makes
"""


def launched(tmp_path: Path, fits_at: int) -> int:
    work = tmp_path / "work"
    work.mkdir()
    (work / "job.json").write_text(json.dumps({"processes": 2, "stage": "toy", "settings": {}}))
    (tmp_path / "rank_toy.py").write_text(RANK)
    env = toys.environment(FITS_AT=str(fits_at))
    code = "import sys; from pipelines.stage import launch\n"
    code += f"launch.rank_command = lambda module, folder: [sys.executable, {str(tmp_path / 'rank_toy.py')!r}, str(folder)]\n"
    code += f"launch.main(['toy', {str(work)!r}])"
    return subprocess.run([sys.executable, "-c", code], env=env, cwd=toys.ROOT, timeout=120, check=False).returncode


def test_all_ranks_start_again_until_the_passes_fit(tmp_path):
    assert launched(tmp_path, 2) == 0
    tries = sorted(path.name for path in (tmp_path / "work").glob("rank?-*"))
    assert tries == [f"rank{rank}-{halved}" for rank in range(2) for halved in range(3)]
    assert not list((tmp_path / "work").glob("ranks-*")), "the places where they met are gone"


@pytest.mark.slow
def test_ranks_that_never_fit_end(tmp_path, monkeypatch):
    began = time.monotonic()
    assert launched(tmp_path, 1000) == launch.AGAIN
    assert len(list((tmp_path / "work").glob("rank0-*"))) == launch.MOST_STARTS and time.monotonic() - began < 100


@pytest.mark.parametrize(("local", "ends"), [("2", True), ("1", False)], ids=["one machine", "two machines"])
def test_ranks_of_several_machines_do_not_start_again(local, ends, monkeypatch):
    """The launcher of the other machine would go on waiting."""
    codes = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    monkeypatch.setattr(launch.os, "_exit", codes.append)
    monkeypatch.setattr(launch.logging, "shutdown", lambda: None)
    launch.start_again()
    assert codes == ([launch.AGAIN] if ends else [])
