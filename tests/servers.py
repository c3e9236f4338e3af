"""Real servers on free ports, stopped with everything they started."""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import databases
import pytest

Served = TypeVar("Served", bound=Any)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(stand_in: Served) -> Iterator[Served]:
    """A stand-in whose `server` answers for the length of a block, in a thread of this process."""
    thread = threading.Thread(target=stand_in.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield stand_in
    finally:
        stand_in.server.shutdown()
        stand_in.server.server_close()
        thread.join()


class Webhook:
    """A server that remembers what it was sent, and answers as it is told: a status, or "hang".

    Args:
        token: the secret part of its address.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        self.bodies: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.answer: int | str = 200
        self.free = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                outer.paths.append(self.path)
                outer.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                if outer.answer == "hang":
                    outer.free.wait(30)
                    return
                self.send_response(outer.answer)
                self.send_header("location", f"http://127.0.0.1:{outer.server.server_address[1]}/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        """Its address, with the token."""
        return f"http://127.0.0.1:{self.server.server_address[1]}/services/{self.token}"

    @property
    def texts(self) -> list[str]:
        """What people would read."""
        return [body["text"] for body in self.bodies]


def wait_for(url: str, timeout_s: float = 90) -> None:
    """Until the address answers."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as reply:
            if reply.status < 500:
                return
        time.sleep(0.3)
    raise TimeoutError(url)


def stop(process: subprocess.Popen) -> None:
    """The process and its children, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def running(command: list[str], log: Path, health: str | None, **env: str) -> Iterator[subprocess.Popen]:
    """A server for the length of a block."""
    with open(log, "ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **env}, start_new_session=True)
    try:
        if health:
            wait_for(health)
        yield process
    finally:
        stop(process)


_shared: dict[str, str] = {}


def shared_prefect() -> dict[str, str]:
    """The environment of a `whetstone run` that takes this test process's Prefect server instead of starting one of its own.

    Starting one takes five seconds of processor time; tests of the embedded server itself do without this.
    """
    if not _shared:
        from tasks import prefect_server

        folder = Path(tempfile.mkdtemp(prefix="prefect"))
        databases.prefect(folder)
        password = f"tests:{secrets.token_urlsafe(32)}"
        access = {"PREFECT_API_AUTH_STRING": password, "PREFECT_SERVER_API_AUTH_STRING": password}
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener, pytest.MonkeyPatch.context() as patch:
            patch.setenv("PREFECT_HOME", str(folder))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            process = prefect_server._start(listener.fileno(), folder / "server.log", access)
        prefect_server._wait(process, url, folder / "server.log")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(stop, process)
        _shared.update(
            access, PREFECT_API_URL=url, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE="false", **{prefect_server.EMBEDDED: "1"}
        )
    return _shared


def mlflow_command(folder: Path, port: int, store: str | None = None) -> list[str]:
    """A small MLflow server, on SQLite unless a store is named; its empty database is put there."""
    if store is None and not (folder / "server.db").exists():
        databases.mlflow(folder / "server.db", "mlflow-artifacts:")
    return [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", store or f"sqlite:///{folder / 'server.db'}", "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip


class Proxy(ThreadingHTTPServer):
    """A server before another: passes requests on, or answers a status, or takes the connection and says nothing.

    Args:
        upstream: address of the real server; None where every request is answered here.
        user: "name:password" that every request must bring.
    """

    daemon_threads = True

    def __init__(self, upstream: str | None = None, user: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.user = upstream, user
        self.mode: int | str = "pass"
        self.free = threading.Event()
        self.requests: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def handle_any(self) -> None:
        body = self.body()
        server: Proxy = self.server
        server.requests.append(self.path)
        if server.user is not None:
            wanted = "Basic " + base64.b64encode(server.user.encode()).decode()
            if self.headers.get("authorization") != wanted:
                return self.answer(401, b'{"error_code": "UNAUTHENTICATED", "message": "who are you?"}')
        if self.path.endswith("/health") and server.mode != "hang":
            return self.answer(200, b"OK")
        if server.mode == "hang":
            server.free.wait(600)
            return self.answer(503, b"{}")
        if server.mode == "garbage":
            self.wfile.write(b"\x00\x01 no http at all\r\n\r\n")
            self.close_connection = True
            return None
        if server.mode != "pass":
            return self.answer(int(server.mode), b"refused", "text/plain")
        assert server.upstream is not None
        headers = {
            k: v
            for k, v in self.headers.items()
            if k.lower() not in ("host", "connection", "authorization", "transfer-encoding")
        }
        data = body if self.command in ("POST", "PUT", "PATCH") else None
        request = urllib.request.Request(server.upstream + self.path, data, headers, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return self.answer(reply.status, reply.read(), reply.headers.get("content-type", "text/plain"))
        except urllib.error.HTTPError as error:
            return self.answer(error.code, error.read())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any
