"""Programs whose packages take long to be imported: one process imports them, and each program is a fork of it (`_preload_host`)."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.environments import Unavailable, _keeper
from pipelines.environments._program import environment_of

HOST_FILE = Path(_keeper.__file__).with_name("_preload_host.py")
START_S = 100.0
"""How long a start may wait for the imports; below what a step may take."""


class Preloaded:
    """The process, which is started at once; a `Host` of programs.

    Args:
        python: the interpreter.
        modules: what it imports.
        variables: of its environment while it imports, as those of a program.
    """

    def __init__(self, python: str, modules: Sequence[str], variables: Mapping[str, str]) -> None:
        self.over: str | None = None
        """Why it starts nothing any more."""
        self._ready, self._lock = threading.Event(), threading.Lock()
        self._control, its_end = socket.socketpair()
        with its_end:
            self._process = subprocess.Popen(
                [python, str(HOST_FILE), str(its_end.fileno()), json.dumps(list(modules))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[its_end.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is this process's to handle
                cwd="/",
                env=environment_of(variables),
            )
        threading.Thread(target=self._watch, daemon=True, name="preload").start()

    def _watch(self) -> None:
        error: str | None = None
        with self._control.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                error = json.loads(line)["error"]
                self.over = error
                self._ready.set()
        code = self._process.wait()
        with self._lock:
            self.over = error or f"the process that imported the modules of `preload` is gone: exit code {code}"
            self._control.close()
        self._ready.set()

    def hand_over(self, end: socket.socket) -> None:
        """Have it start the keeper of a program that reads from and writes to this socket.

        Raises:
            Unavailable: the modules cannot be imported, or not in `START_S`, or the process is gone.
        """
        if not self._ready.wait(START_S):
            raise Unavailable(f"the modules of `preload` are not imported after {START_S:g} s")
        with self._lock:
            if self.over is not None:
                raise Unavailable(self.over)
            try:
                socket.send_fds(self._control, [b"+"], [end.fileno()])
            except OSError as error:
                raise Unavailable("the process that imported the modules of `preload` is gone") from error


_hosts: dict[str, Preloaded] = {}
_starting = threading.Lock()


def host_of(python: str, modules: Sequence[str], variables: Mapping[str, str]) -> Preloaded:
    """This process's for these modules; started where there is none, or where it is gone."""
    key = json.dumps([python, list(modules), dict(variables)], sort_keys=True)
    with _starting:
        host = _hosts.get(key)
        if host is None or host.over is not None:
            host = _hosts[key] = Preloaded(python, modules, variables)
        return host
