"""The embedded Prefect server: on loopback, answered for, gone with its owner."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest
import toys
from children import alive, wait_until

from tasks import environment, prefect_server
from tasks.tracking import links


@pytest.fixture
def prepared(home, monkeypatch):
    for name in ("PREFECT_HOME", "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"):
        monkeypatch.setenv(name, str(home / "prefect") if name == "PREFECT_HOME" else "true")
    environment.prepare()
    return home


def test_a_named_server_is_used_as_it_is(prepared, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with prefect_server.embedded() as ready:
        ready()
        assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:9/api"
        assert links.flow_run("x") == "http://127.0.0.1:9/runs/flow-run/x"


@pytest.mark.slow
def test_a_server_that_cannot_start(prepared, monkeypatch):
    """A database that is a folder: one line that names the log, and nothing stays behind."""
    (prepared / "prefect" / "prefect.db").mkdir(parents=True)
    with pytest.raises(prefect_server.ServerFailed, match=r"server\.log"), prefect_server.embedded() as ready:
        ready()
    assert (
        "PREFECT_API_URL" not in os.environ
        and links.EMBEDDED not in os.environ
        and (prepared / "prefect" / "server.log").exists()
    )


def status(url: str, password: str | None = None, method: str = "GET") -> int:
    """Of the answer to a request, with a password or without."""
    headers = {"Content-Type": "application/json"}
    if password is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(password.encode()).decode()
    request = urllib.request.Request(url, b"{}" if method == "POST" else None, headers, method=method)
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
@pytest.mark.server
def test_it_answers_on_loopback_to_its_password_and_leaves(prepared):
    earlier = psutil.Process().children()  # the one that other tests share may be among them
    with prefect_server.embedded() as ready:
        ready()
        assert links.flow_run("x") is None, "its page would be gone with the command"
        url = os.environ["PREFECT_API_URL"]
        with urllib.request.urlopen(f"{url}/health") as reply:
            assert reply.status == 200
        children = psutil.Process().children()
        server = next(p for p in children if p not in earlier and "tasks.prefect_server" in p.cmdline())
        assert os.getsid(server.pid) == server.pid, "Ctrl+C in our terminal does not reach it"
        assert {c.laddr.ip for c in server.net_connections("inet") if c.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
        password = os.environ["PREFECT_API_AUTH_STRING"]
        assert password not in " ".join(server.cmdline()), "arguments can be read by everybody"
        assert status(f"{url}/admin/version") == status(f"{url}/admin/version", "whetstone:guessed") == 401
        assert status(f"{url}/flow_runs/count", method="POST") == 401
        assert status(f"{url}/admin/version", password) == status(f"{url}/flow_runs/count", password, "POST") == 200
        environment.check_reachable()
    assert not server.is_running() and environment.prefect_api() is None
    assert not {"PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"} & set(os.environ)
    with prefect_server.embedded():
        assert os.environ["PREFECT_API_AUTH_STRING"] != password, "one for each run"


@pytest.mark.slow
@pytest.mark.server
def test_it_leaves_with_an_owner_that_was_killed(home):
    code = """
from tasks import environment, prefect_server
from tasks.tracking import links
environment.prepare()
with prefect_server.embedded() as ready:
    ready()
    import psutil; print(psutil.Process().children()[0].pid, flush=True)
    import time; time.sleep(600)
"""
    env = toys.environment(WHETSTONE_HOME=str(home))
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    server = int(owner.stdout.readline())
    assert alive([server])
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    wait_until(lambda: not alive([server]), 8)
