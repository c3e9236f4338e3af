"""A flow's process under a worker: real processes, one of which is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
import toys
from children import wait_until

from tasks import worker

FLOW = """
import os, sys, time
from tasks import worker
class Termination(BaseException): pass
import signal
def stop(*_): raise Termination
signal.signal(signal.SIGTERM, stop)
os.environ[worker.FLOW_RUN] = "1"
worker.enter()
open("{note}.cwd", "w").write(os.getcwd())
try:
    while True:
        print("a line", flush=True)
        time.sleep(0.01)
except Termination:
    print("into a pipe that nobody reads", flush=True)
    open("{note}", "w").write("ended in order")
"""


@pytest.mark.parametrize("home", ["", "relative/.whetstone"])
def test_a_project_folder_in_a_temporary_folder_is_refused(monkeypatch, home):
    monkeypatch.setenv(worker.FLOW_RUN, "1")
    monkeypatch.setenv("WHETSTONE_HOME", home)
    with pytest.raises(worker.WorkerError, match="whetstone worker"):
        worker.enter()


def test_nothing_happens_elsewhere(monkeypatch):
    monkeypatch.delenv(worker.FLOW_RUN, raising=False)
    before = os.getcwd()
    worker.enter()
    assert os.getcwd() == before


def test_a_flow_whose_worker_is_killed_ends_in_order(tmp_path):
    """Its output goes into the worker's pipe, as with stream_output; the worker is killed in mid-print."""
    note = tmp_path / "note"
    (tmp_path / "flow.py").write_text(FLOW.replace("{note}", str(note)))
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, sys.argv[1]], stdout=subprocess.PIPE);"
        "print(p.pid, flush=True)\nfor line in p.stdout: pass"
    )
    env = toys.environment(WHETSTONE_HOME=str(tmp_path / "home"))
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "flow.py")],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        cwd=tmp_path,
    )
    flow = int(process.stdout.readline())
    wait_until(note.with_suffix(".cwd").exists, 30)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGSTOP)  # it reads no more, and then it is gone
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    try:
        wait_until(lambda: note.exists() and note.read_text() == "ended in order", 30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(flow, signal.SIGKILL)
    assert note.with_suffix(".cwd").read_text() == str(tmp_path), "the folder that holds the project folder"
