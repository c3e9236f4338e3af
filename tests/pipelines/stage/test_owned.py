"""A program of somebody else's ends with the process that started it, with everything that it started itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import toys
from children import alive, wait_until

from pipelines.base import owner

PROGRAM = """
import os, signal, subprocess, sys, time
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(0.5 if sys.argv[2] == "short" else 600)
"""
STARTER = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-m", "pipelines.stage.owned", *sys.argv[1:]],
                 env={**os.environ, "WHETSTONE_PARENT": str(os.getpid())}, start_new_session=True)
time.sleep(600)
"""


def pids(path):
    for _ in range(400):
        if path.exists() and len(path.read_text().split()) == 2:
            return [int(pid) for pid in path.read_text().split()]
        time.sleep(0.05)
    raise AssertionError("the program never started")


@pytest.mark.parametrize("kind", ["polite", pytest.param("stubborn", marks=pytest.mark.slow)])
def test_a_killed_parent_takes_the_program_and_its_children_along(kind, tmp_path):
    path = tmp_path / "pids"
    command = [sys.executable, "-c", STARTER, sys.executable, "-c", PROGRAM, str(path), kind]
    parent = subprocess.Popen(command, env=toys.environment(), cwd=toys.ROOT)
    started = pids(path)
    parent.kill()
    parent.wait()
    wait_until(lambda: not alive(started), 15)


def test_a_program_that_ends_leaves_no_children(tmp_path):
    path = tmp_path / "pids"
    environment = toys.environment(**{owner.PARENT: str(os.getpid())})
    command = [sys.executable, "-m", "pipelines.stage.owned", sys.executable, "-c", PROGRAM, str(path), "short"]
    keeper = subprocess.Popen(command, env=environment, cwd=toys.ROOT, start_new_session=True, stderr=subprocess.PIPE)
    started = pids(path)
    assert b"ended with code 0" in keeper.communicate(timeout=30)[1]
    assert keeper.returncode == -signal.SIGKILL
    wait_until(lambda: not alive(started), 5)


def test_a_process_that_has_ended_and_was_not_reaped_does_not_run():
    child = subprocess.Popen(["sleep", "600"])
    assert owner.running(child.pid) and owner.started(child.pid) is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not owner.running(child.pid) and owner.started(child.pid) is not None, "a zombie still has its pid"
    child.wait()
    assert not owner.running(child.pid) and owner.started(child.pid) is None
