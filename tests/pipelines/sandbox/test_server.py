"""What the server of sandboxes refuses, and what becomes of programs whose client is gone."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest
import sandbox_server
from children import alive, wait_until
from psutil import Process

from pipelines.base.errors import USER_ERROR_EXIT
from pipelines.sandbox import server
from pipelines.sandbox.worker import Limits

LIMITS = vars(Limits())
SCRIPT = {"request": {"mode": "script", "source": "print(1)"}, "limits": LIMITS}


@pytest.fixture(scope="module")
def served():
    with sandbox_server.serving(workers=1) as (address, process):
        yield urlsplit(address).port, process


def ask(port, path, body=None, key=sandbox_server.KEY, method="POST", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    sent = {"Authorization": f"Bearer {key}", **headers}
    connection.request(
        method, path, None if body is None else body if isinstance(body, str) else json.dumps(body), sent
    )
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def changed(**limits):
    return {**SCRIPT, "limits": LIMITS | limits}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/execute", SCRIPT, 200),
        ("/execute", changed(cpu_s=61), 400),
        ("/execute", changed(cpu_s=0), 400),
        ("/execute", changed(cpu_s=1.5), 400),
        ("/execute", changed(wall_factor=1e9), 400),
        ("/execute", changed(memory_bytes=1 << 40), 400),
        ("/execute", changed(memory_bytes="all"), 400),
        ("/execute", changed(nice=-20), 400),
        ("/execute", {**SCRIPT, "request": {"mode": "root"}}, 400),
        ("/execute", {**SCRIPT, "request": {"mode": "shell", "folders": {"/etc": 1}, "memory_bytes": 1}}, 400),
        ("/execute", {**SCRIPT, "request": {"mode": "shell", "folders": {}, "memory_bytes": 1 << 40}}, 400),
        ("/execute", {**SCRIPT, "request": []}, 400),
        ("/execute", {**SCRIPT, "stdin": "no base64"}, 400),
        ("/execute", "[1]", 400),
        ("/execute", "[" * 100_000, 400),
        ("/run_in_session", {"session": "0"}, 404),
        ("/create_session", {**SCRIPT, "beside": "0"}, 404),
        ("/close_session", {"session": "0"}, 200),
        ("/shutdown", {}, 404),
    ],
)
def test_what_is_answered(served, path, body, status):
    assert ask(served[0], path, body)[0] == status


def test_no_key_no_answer_and_nothing_that_is_too_large_is_read(served):
    port = served[0]
    for key in ("", "wrong", "é"):
        assert ask(port, "/execute", SCRIPT, key=key)[0] == 401
    assert ask(port, "/is_alive", key="wrong", method="GET")[0] == 401
    assert ask(port, "/is_alive", method="GET")[1]["workers"] == 1
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.putrequest("POST", "/execute")
    connection.putheader("Authorization", f"Bearer {sandbox_server.KEY}")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    assert connection.getresponse().status == 413


def test_it_refuses_to_start_without_a_key():
    command = [sys.executable, "-m", "pipelines.sandbox.server", "--port", "0", "--api-key-env", "NO_SUCH_KEY"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == USER_ERROR_EXIT and "the environment has no NO_SUCH_KEY" in done.stderr


@pytest.mark.slow
def test_a_session_that_its_client_left_ends_and_frees_its_sandbox(monkeypatch):
    monkeypatch.setattr(server, "IDLE_S", 0.3)
    monkeypatch.setattr(server, "QUEUE_S", 0.1)
    host = server.Host(1, server.isolation.best())
    try:
        body = {
            "request": {"mode": "functions", "source": "x = 1"},
            "limits": LIMITS | {"wall_factor": 0.2, "cpu_s": 1},
        }
        session = host.create_session(body)["session"]
        with pytest.raises(server.Refused, match="all 1 sandboxes are busy"):
            host.execute(SCRIPT)
        time.sleep(0.4)
        with pytest.raises(server.Refused, match="idle for too long"):
            host.run_in_session({"session": session, "message": None})
        wait_until(lambda: not host.sessions)
        assert host.execute(SCRIPT)["status"] == 0 and len(host.idle) == 1
    finally:
        host.idle.pop().close()


def test_a_sandbox_that_breaks_is_replaced():
    host = server.Host(1, server.isolation.best())
    body = {"request": {"mode": "functions", "source": "x = 1"}, "limits": LIMITS}
    session = host.create_session(body)["session"]
    host.sessions[session].lease.worker.process.kill()
    host.sessions[session].lease.worker.process.wait()
    with pytest.raises(server.Broken):
        while True:
            host.run_in_session({"session": session, "message": {"name": "f", "args": [], "kwargs": {}}})
    host.close_session({"session": session})
    assert host.idle == [] and host.execute(SCRIPT)["status"] == 0
    host.idle.pop().close()


@pytest.mark.slow
def test_sandboxes_end_with_the_server():
    with sandbox_server.serving(workers=1) as (address, process):
        assert ask(urlsplit(address).port, "/execute", SCRIPT)[0] == 200
        family = [each.pid for each in Process(process.pid).children(recursive=True)]
        assert family and os.getpid() not in family
        process.kill()
        wait_until(lambda: not alive(family))
