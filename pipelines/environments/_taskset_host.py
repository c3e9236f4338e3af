"""A process of another Python that plays tasks of a `verifiers` environment (`_taskset_runner`), for all episodes of this process."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from pipelines.environments import Unavailable, _taskset_runner
from pipelines.environments._program import INHERITED, Ended, Program

LOAD_S = 600.0
"""How long an environment may take to be loaded, and to make its tasks."""
START_S = 100.0
"""How long a step may wait for that, where the process has to be started again; below what a step may take."""
LOOK_S = 60.0
NO_LIMIT = 2**50


@dataclass(frozen=True)
class Played:
    """What came of an episode."""

    reward: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def why(self) -> str:
        """In words, for one that has asked nothing."""
        return self.error or "the episode ends before"


@dataclass(frozen=True)
class Installed:
    """What a Python has."""

    verifiers: str | None
    """Version of the package."""
    code: dict[str, str | None]
    """Module of a taskset, harness or environment → digest of its files: empty for the package's own, None where it is not there."""


@cache
def installed(python: str, modules: tuple[str, ...], variables: tuple[tuple[str, str], ...] = ()) -> Installed:
    """What a Python has, with variables of its environment.

    Raises:
        Unavailable: it does not run.
    """
    command = [python, "-P", str(_taskset_runner.__file__), "look", *modules]
    try:
        own = {name: os.environ[name] for name in (*INHERITED, "PATH") if name in os.environ}
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=LOOK_S, check=True, env={**own, **dict(variables)}
        )
        return Installed(**json.loads(ran.stdout))
    except subprocess.CalledProcessError as error:
        raise Unavailable(error.stderr.strip()[-200:] or f"exit code {error.returncode}") from error
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise Unavailable(f"{type(error).__name__}: {str(error)[:200]}") from error


class Host:
    """The process, which is started at once and told what to play when it is there.

    Args:
        python: the interpreter that has the package.
        env: the `[env]` block of its configurations.
        select: which tasks.
        variables: of its environment.
    """

    def __init__(
        self, python: str, env: Mapping[str, Any], select: Mapping[str, Any], variables: Mapping[str, str]
    ) -> None:
        self.over: str | None = None
        """Why it plays nothing any more."""
        self._ready, self._lock, self._ids = threading.Event(), threading.Lock(), count(1)
        self._waiting: dict[int, Callable[[dict[str, Any]], None]] = {}
        self._listener = socket.create_server((_taskset_runner.HOST, 0))
        self._listener.settimeout(LOAD_S)
        self._word = secrets.token_hex(16)
        self._stream: socket.socket | None = None
        port = str(self._listener.getsockname()[1])
        self._program = Program(
            [python, "-P", str(_taskset_runner.__file__), port, self._word],
            {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **variables},
            task="",
            output=NO_LIMIT,
            result_file=None,
            on_end=self._ended,
        )
        first = json.dumps({"env": env, "select": select}).encode() + b"\n"
        threading.Thread(target=self._serve, args=(first,), daemon=True, name="taskset").start()

    def _serve(self, first: bytes) -> None:
        try:
            while self._stream is None:  # whoever does not know the word is not it
                stream, _ = self._listener.accept()
                lines = stream.makefile("rb")
                if lines.readline().strip() == self._word.encode():
                    self._stream = stream
                else:
                    stream.close()
            self._stream.sendall(first)
            for line in lines:
                reply = json.loads(line)
                if reply["id"] == 0:
                    self.over = reply.get("error")
                    self._ready.set()
                elif (told := self._waiting.pop(reply["id"], None)) is not None:
                    told(reply)
        except (OSError, ValueError):  # its end tells why
            pass
        finally:
            self._listener.close()

    def _ended(self, ended: Ended) -> None:
        with self._lock:
            self.over = self.over or f"the process that plays it is gone: {ended.why}"
            waiting, self._waiting = list(self._waiting.values()), {}
        with contextlib.suppress(OSError):
            self._listener.close()
        self._ready.set()
        for told in waiting:
            told({"error": self.over})

    def wait(self, within_s: float) -> bool:
        """Wait until the environment is loaded, or cannot be; whether that is known."""
        return self._ready.wait(within_s)

    def ask(self, request: dict[str, Any], told: Callable[[dict[str, Any]], None], within_s: float) -> int:
        """Send a request; its number.

        Args:
            told: of the reply, from another thread.
            within_s: how long to wait until the environment is loaded.

        Raises:
            Unavailable: the process is not there.
        """
        if not self.wait(within_s):
            raise Unavailable("the environment is not loaded yet")
        with self._lock:
            if self.over is not None or self._stream is None:
                raise Unavailable(self.over or "the process that plays it is gone")
            number = next(self._ids)
            self._waiting[number] = told
            self._send({"id": number, **request})
            return number

    def _send(self, request: dict[str, Any]) -> None:
        assert self._stream is not None
        with contextlib.suppress(OSError):  # its end is told
            self._stream.sendall(json.dumps(request).encode() + b"\n")

    def drop(self, number: int) -> None:
        """A request's reply is not wanted any more."""
        with self._lock:
            if self._waiting.pop(number, None) is not None:
                self._send({"id": number, "do": "stop"})

    def tasks(self, size: int, seed: int) -> list[dict[str, Any]]:
        """The data of so many tasks, or of all that there are.

        Raises:
            Unavailable: it cannot make them.
        """
        replied, replies = threading.Event(), []

        def told(reply: dict[str, Any]) -> None:
            replies.append(reply)
            replied.set()

        self.ask({"do": "tasks", "size": size, "seed": seed}, told, LOAD_S)
        if not replied.wait(LOAD_S):
            raise Unavailable(f"the tasks are not there after {LOAD_S:g} s")
        if "error" in replies[0]:
            raise Unavailable(replies[0]["error"])
        return list(replies[0]["tasks"])


class Playing:
    """An episode that is played.

    Args:
        url: where its model is asked.
        told: what came of it.

    Raises:
        Unavailable: the process is not there.
    """

    def __init__(self, host: Host, task: dict[str, Any], url: str, told: Callable[[Played], None]) -> None:
        self.host = host

        def replied(reply: dict[str, Any]) -> None:
            told(Played(**{name: value for name, value in reply.items() if name != "id"}))

        self.number = host.ask({"do": "play", "task": task, "url": url}, replied, START_S)

    def kill(self) -> None:
        """End it."""
        self.host.drop(self.number)


_hosts: dict[str, Host] = {}
_starting = threading.Lock()


def host_of(python: str, env: Mapping[str, Any], select: Mapping[str, Any], variables: Mapping[str, str]) -> Host:
    """This process's for these settings; started where there is none, or where it is gone."""
    name = str(env["taskset"]["id"])
    if name.endswith(".py"):
        file = Path(name).expanduser().resolve()
        env = {**env, "taskset": {**env["taskset"], "id": str(file)}}
        path = os.pathsep.join([str(file.parent), *filter(None, [variables.get("PYTHONPATH")])])
        variables = {**variables, "PYTHONPATH": path}
    key = json.dumps([python, env, select, variables], sort_keys=True)
    with _starting:
        host = _hosts.get(key)
        if host is None or host.over is not None:
            host = _hosts[key] = Host(str(Path(python).expanduser().absolute()), env, select, variables)
        return host
