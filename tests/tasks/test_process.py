"""Stages in processes of their own: what comes back, what they may reach, and that they end with their owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import toys
from children import TOYS as HERE
from children import alive, job, wait_until

from pipelines.base.errors import Problem
from tasks import process


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def run(work, do, **settings):
    return process.run("stage_toy", work, job(do, **settings), lambda: None)


@pytest.mark.slow
def test_numbers_come_back_and_stdin_is_empty(tmp_path):
    assert run(tmp_path / "w", "numbers") == {"done": 1.0}
    assert run(tmp_path / "x", "stdin") == {"bytes": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("do", "code", "kind", "said", "killer"),
    [
        ("user error", 2, "data", "train.jsonl: line 3", None),
        ("gave up", 1, "interrupted", "not finite", None),
        ("bug", 1, "stage", "RuntimeError: a bug", None),
        ("kill", 1, "stage", "killed by signal 9", 9),
        ("memory", 1, "stage", "Lower micro_batch_tokens", None),
    ],
)
def test_failures_say_whose_they_are(tmp_path, do, code, kind, said, killer):
    with pytest.raises(process.StageFailed, match=said) as caught:
        run(tmp_path / "w", do)
    assert (caught.value.exit_code, caught.value.kind) == (code, kind)
    assert caught.value.signal == killer
    if do == "user error":
        assert caught.value.problems == [Problem("train.jsonl", "line 3: no JSON", "Mend the line.")]
    assert ("Out of memory?" in str(caught.value)) is (do in ("kill", "memory"))


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others(tmp_path):
    began = time.monotonic()
    with pytest.raises(process.StageFailed, match="exit code 7"):
        run(tmp_path / "w", "second fails", processes=2)
    assert time.monotonic() - began < 30
    wait_until(lambda: not alive([int((tmp_path / "w" / "pid0").read_text())]))
    assert not list((tmp_path / "w").glob("ranks-*"))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("victim", ["owner", "launcher"])
def test_nothing_outlives_its_owner(tmp_path, processes, victim):
    """SIGKILL of the pipeline, or of the launcher: ranks and what they started are gone within seconds."""
    work = tmp_path / "w"
    code = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
from tasks import process
process.run("stage_toy", Path({str(work)!r}), {job("children", processes=processes)!r}, lambda: None)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], env=toys.environment(PYTHONPATH=f"{toys.ROOT}:{HERE}"))
    files = [work / f"{name}{rank}" for name in ("pid", "pid-child") for rank in range(processes)]
    wait_until(lambda: all(f.exists() for f in files), 30)
    pids = [int(f.read_text()) for f in files]
    launcher = psutil.Process(pids[0]).ppid()
    assert launcher != owner.pid and len(alive([*pids, launcher])) == len(pids) + 1
    os.kill(owner.pid if victim == "owner" else launcher, signal.SIGKILL)
    wait_until(lambda: not alive([*pids, launcher]))
    owner.wait(timeout=20)


def test_a_job_whose_owner_is_gone_never_begins(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / "job.json").write_text(json.dumps({**job("numbers"), "parent_pid": gone.pid}))
    command = [sys.executable, "-m", "pipelines.stage.launch", "stage_toy", str(tmp_path)]
    done = subprocess.run(command, env=toys.environment(PYTHONPATH=f"{toys.ROOT}:{HERE}"), check=False, timeout=30)
    assert done.returncode != 0
    assert not (tmp_path / "pid0").exists()


def test_several_machines_name_an_address(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(job("numbers")))
    command = [sys.executable, "-m", "pipelines.stage.launch", "stage_toy", str(tmp_path), "--nodes", "2"]
    for more in ([], ["--address", "0.0.0.0:29400", "--interface", "lo"], ["--address", "10.0.0.1:29400"]):
        done = subprocess.run(
            [*command, *more], capture_output=True, text=True, env=toys.environment(), check=False, timeout=30
        )
        assert done.returncode == 1 and "--address HOST:PORT" in done.stderr


def test_who_waits_says_for_whom_and_says_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "WAITING_S", 0.3)
    told: list[str] = []
    holds, ends = threading.Event(), threading.Event()

    def hold():
        with process.lock(tmp_path / "lock", "run-17"):
            holds.set()
            ends.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(10)

    def waiting(who):
        told.append(who)
        if len(told) == 2:
            ends.set()

    with process.lock(tmp_path / "lock", "run-18", waiting):
        assert process.holder(tmp_path / "lock").endswith("run run-18)")
    thread.join()
    assert len(told) == 2 and all(f"process {os.getpid()} (since 20" in t and "run run-17" in t for t in told)
