"""A program of the user's as a child process that ends with its episode, and with this process however that ends (`_keeper`)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipelines.environments import _keeper

INHERITED = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "SHELL")
"""Variables that a program gets from this process; nothing else, so no secret of it."""


@dataclass(frozen=True)
class Ended:
    """What came of a program."""

    code: int
    """Its exit code; minus N where signal N ended it."""
    stdout: str
    stderr: str
    result: str | None
    """Text of the file that it was to write; None without one."""
    overflow: bool
    """It printed more than it may."""

    @property
    def last_line(self) -> str:
        """Of its standard output, blank lines left out."""
        return next((line.strip() for line in reversed(self.stdout.splitlines()) if line.strip()), "")

    @property
    def why(self) -> str:
        """The exit code and the last line of standard error, in words."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return f"it ends with exit code {self.code}" + (f" ({lines[-1][:300]})" if lines else "")


class Host(Protocol):
    """What starts programs from a process that has imported their packages already (`_preload`)."""

    def hand_over(self, end: socket.socket) -> None:
        """Have it start a keeper that reads from and writes to this socket."""


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables, PATH and `INHERITED`."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**inherited, "PATH": path, "PYTHONHASHSEED": "0", **variables}


class Program:
    """A program that runs in a folder of its own.

    Args:
        command: the program and its arguments.
        variables: of its environment, beside PATH and `INHERITED`.
        task: its standard input.
        output: bytes that it may write to standard output, and to standard error, before it is killed.
        result_file: name of the file in its folder that is read when it has ended.
        on_end: told what came of it, from another thread; not where this process had it killed.
        host: starts it; default: a process of its own.

    Raises:
        Unavailable: the host does not start it.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        task: str,
        output: int,
        result_file: str | None,
        on_end: Callable[[Ended], None],
        host: Host | None = None,
    ) -> None:
        spec = {
            "command": list(command),
            "environment": environment_of(variables),
            "task": task,
            "output": output,
            "result_file": result_file,
        }
        self._end, its_end = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        with its_end, contextlib.ExitStack() as failed:
            failed.callback(self._end.close)
            if host is not None:
                host.hand_over(its_end)
            else:
                self._process = _keeper_process(its_end)
            failed.pop_all()
        self._killed = False
        with contextlib.suppress(OSError):
            self._end.sendall(json.dumps(spec).encode() + b"\n")
        threading.Thread(target=self._read, args=(on_end,), daemon=True, name="program").start()

    def _read(self, on_end: Callable[[Ended], None]) -> None:
        with self._end.makefile("rb") as told, contextlib.suppress(OSError):
            line = told.read()
        code = self._process.wait() if self._process is not None else 0
        self._end.close()
        if self._killed:
            return
        lost = Ended(code or -9, "", "the process that runs the program was killed", None, False)
        on_end(Ended(**json.loads(line)) if line.endswith(b"\n") else lost)

    def kill(self) -> None:
        """End it and all that it has started; returns at once."""
        self._killed = True
        with contextlib.suppress(OSError):  # it has ended
            self._end.shutdown(socket.SHUT_RDWR)


def _keeper_process(end: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_keeper.__file__)],
        stdin=end.fileno(),
        stdout=end.fileno(),
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal is this process's to handle
        cwd="/",
        env={name: os.environ[name] for name in ("TMPDIR",) if name in os.environ},
    )
