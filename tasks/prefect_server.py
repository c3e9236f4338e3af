"""The embedded Prefect server: ours to start and to end, on loopback, with our PREFECT_HOME and a password of its own.

Prefect's own ephemeral server is in the terminal's process group, so Ctrl+C kills it before its client has said
that the run is over, and SIGKILL of the client leaves it behind. This one has a session of its own, is asked to
leave when the block ends, and leaves by itself when its owner is gone, however that happened.

Other users of the machine reach its port, so it asks for a password, drawn anew each time. It is handed on through the environment,
which only processes of the same user can read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipelines.base import owner
from pipelines.base.errors import UserError
from pipelines.base.project import python
from tasks import environment
from tasks.tracking.links import EMBEDDED

STARTUP_S = 120.0
PATIENCE_S = 3.0
LOG_BYTES = 5_000_000
SET = (
    "PREFECT_API_URL",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_SERVER_API_AUTH_STRING",
    EMBEDDED,
)
"""Variables of the environment that are the server's while it runs."""


class ServerFailed(UserError):
    """The embedded server did not start."""


@contextlib.contextmanager
def embedded() -> Iterator[Callable[[], None]]:
    """A Prefect server for the block, named by PREFECT_API_URL, its password by PREFECT_API_AUTH_STRING; nothing where the environment
    names a server already.

    Yields:
        a function that waits until the server answers; other work, such as imports, goes before it.

    Raises:
        ServerFailed: from that function.
    """
    if environment.prefect_api() is not None:
        yield lambda: None
        return
    folder = Path(os.environ["PREFECT_HOME"])
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    with contextlib.suppress(FileNotFoundError):  # another process may remove it first
        if log.stat().st_size > LOG_BYTES:
            log.unlink()
    before = {name: os.environ.get(name) for name in SET}
    password = f"whetstone:{secrets.token_urlsafe(32)}"
    access = {"PREFECT_API_AUTH_STRING": password, "PREFECT_SERVER_API_AUTH_STRING": password}
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        process = _start(listener.fileno(), log, access)
    os.environ |= {"PREFECT_API_URL": url, "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false", EMBEDDED: "1", **access}
    try:
        yield lambda: _wait(process, url, log)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        owner.end_group(process, PATIENCE_S)


def _start(listener: int, log: Path, access: dict[str, str]) -> subprocess.Popen[bytes]:
    """The server's process; it inherits a socket that listens already, so that no port can be lost to another."""
    private = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    with open(log, "ab") as out:
        return subprocess.Popen(
            python("tasks.prefect_server", str(listener)),
            env={**os.environ, **private, **access, owner.PARENT: str(os.getpid())},
            pass_fds=(listener,), start_new_session=True, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + STARTUP_S
    while time.monotonic() < until and process.poll() is None:
        # the socket accepts before the server reads, so a question waits until it is ready
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            if reply.status == 200:
                return
        time.sleep(0.05)
    how = (
        f"ended with code {process.returncode}"
        if process.poll() is not None
        else f"did not answer in {STARTUP_S:.0f} s"
    )
    raise ServerFailed(
        f"the embedded Prefect server {how}; its log: {log}",
        fix=(
            f"Check versions with `whetstone doctor`, move {log.parent} aside if its database is damaged, or name a running server with "
            "PREFECT_API_URL."
        ),
    )


def _orphaned() -> None:
    """SIGTERM has asked the server to leave; this makes sure of it."""
    threading.Event().wait(PATIENCE_S)
    os._exit(owner.ORPHANED)


def main() -> None:
    """Serve on the inherited socket until asked to stop, or until the owner is gone."""
    owner.bind(int(os.environ.pop(owner.PARENT)), signal.SIGTERM, _orphaned)
    import uvicorn
    from filelock import FileLock

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            # two pipelines that start at once would both create the tables of a new database
            with FileLock(Path(os.environ["PREFECT_HOME"]) / "start.lock", fallback_to_soft=False):
                await super().startup(sockets)

    settings: dict[str, Any] = {"factory": True, "log_level": "error", "lifespan": "on", "timeout_graceful_shutdown": 1}
    Server(uvicorn.Config("prefect.server.api.server:create_app", **settings)).run(
        sockets=[socket.socket(fileno=int(sys.argv[1]))]
    )


if __name__ == "__main__":
    main()
