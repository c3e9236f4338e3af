"""Real servers on free ports, stopped with everything they started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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


def mlflow_command(folder: Path, port: int) -> list[str]:
    """A small MLflow server on SQLite."""
    return [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder / 'server.db'}", "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
