"""A process that has imported what stages import, and forks itself for each of them (Linux, a build of torch without CUDA).

    python -m pipelines.stage.fork_server SOCKET

Importing torch and transformers takes most of the processor time of a small stage; a fork of a process that has them takes none. Only
installed libraries are imported here, never the project's code or the user's: a fork imports those itself, as they are by then. It leads
a session of its own, and this process is to it what `pipelines.stage.launch` is to a stage that starts from scratch: it says how it ended,
and ends it with all that it has started when the owner goes.

A process that has asked for CUDA cannot use it after a fork, and a library that is imported may ask; so there no fork is made.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from pipelines.base import owner
from pipelines.base.project import python
from pipelines.base.user_modules import PACKAGES

REQUEST_BYTES = 100_000
NUMBER = struct.Struct("i")
"""What the server says of a fork, one after the other: its pid, then the status that it was waited for with."""
PATIENCE_S = 3.0
NAME = " " * 400
"""An argument without meaning: the room in which a fork writes what it is, for `ps`."""


def possible() -> bool:
    """Whether stages of this machine may be forks."""
    return sys.platform == "linux" and version("torch").endswith("+cpu")


class Forked:
    """A fork of the server, used as a `subprocess.Popen`.

    Attributes:
        stdin: the writing end of its standard input.
        returncode: as of a `Popen`; -SIGKILL where the server has ended, and with it the fork.
    """

    def __init__(self, stdin: int, status: int) -> None:
        self.stdin = os.fdopen(stdin, "wb")
        self.returncode: int | None = None
        self._status, self._pid = status, 0

    @property
    def pid(self) -> int:
        """Its process, and the group that it leads; waits until the server has imported what it needs.

        Raises:
            ProcessLookupError: it was never forked.
        """
        while not self._pid and self._read(None):
            pass
        if not self._pid:
            raise ProcessLookupError("the process was never forked")
        return self._pid

    def abandon(self) -> bool:
        """Want it no more if it is not forked yet; the server ends it then once it is. Whether that is so."""
        self.poll()
        if self._pid or self.returncode is not None:
            return False
        self.stdin.close()
        self._end(-signal.SIGKILL)
        return True

    def poll(self) -> int | None:
        """Its exit code, -N where a signal N has killed it; None while it runs."""
        while self.returncode is None and self._read(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As `poll`, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it runs for longer than that.
        """
        while self.poll() is None:
            if not self._read(timeout):
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def _read(self, timeout: float | None) -> bool:
        """Take in the next thing that the server says; whether it did within the time."""
        if self.returncode is not None:
            return False
        status = select.poll()  # takes descriptors of any number
        status.register(self._status, select.POLLIN)
        if not status.poll(None if timeout is None else 1000 * timeout):
            return False
        message = os.read(self._status, NUMBER.size)
        if message and not self._pid:
            (self._pid,) = NUMBER.unpack(message)
            return True
        self._end(os.waitstatus_to_exitcode(NUMBER.unpack(message)[0]) if message else -signal.SIGKILL)
        return True

    def _end(self, returncode: int) -> None:
        self.returncode = returncode
        os.close(self._status)


class ForkServer:
    """The server's process, a child of this thread, with which it ends.

    Args:
        environment: of the server and of its forks.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment, self.folder = dict(environment), os.getcwd()
        self._channel, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end, tempfile.TemporaryFile() as output:
            self._process = subprocess.Popen(
                [*python("pipelines.stage.fork_server", str(far_end.fileno())), NAME],
                env={**environment, owner.PARENT: str(os.getpid())}, pass_fds=(far_end.fileno(),),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def fits(self, environment: Mapping[str, str], set_aside: Sequence[str]) -> bool:
        """Whether it runs, in this folder and with this environment.

        Args:
            set_aside: prefixes of variables that may differ.
        """
        changed = (name for name, _ in self.environment.items() ^ environment.items())
        same = self.folder == os.getcwd() and all(name.startswith(tuple(set_aside)) for name in changed)
        return same and self._process.poll() is None

    def fork(self, arguments: Sequence[str], libraries: Sequence[str], output: int, errors: int) -> Forked:
        """A fork that runs `python -m ARGUMENTS`, with `owner.PARENT` in its environment.

        Args:
            libraries: modules to import before; those of the project and of the user are left to the fork.
            output, errors: descriptors for what it writes; to the first goes what the server has written while it imported.

        Raises:
            OSError: the server has ended.
        """
        stdin, writer = os.pipe()
        status, status_writer = os.pipe()
        try:
            request = json.dumps({"arguments": [*arguments], "libraries": [*libraries]}).encode()
            socket.send_fds(self._channel, [request], [stdin, output, errors, status_writer])
        except OSError:
            _close(writer, status)
            raise
        finally:
            _close(stdin, status_writer)
        return Forked(writer, status)

    def end(self) -> None:
        """End it and its forks."""
        self._channel.close()
        owner.end_group(self._process, PATIENCE_S)


def main() -> None:
    """Serve until the owner is gone; a fork returns from `_serve` and becomes what was asked for."""
    children: dict[int, tuple[int, int]] = {}
    """Descriptor of a fork's process → its pid, and where its end is told."""

    def stop(*_: object) -> NoReturn:
        for child, _status in children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        os._exit(owner.ORPHANED)

    signal.signal(signal.SIGTERM, stop)
    owner.die_with_parent(signal.SIGTERM)
    if os.getppid() != int(os.environ[owner.PARENT]):
        stop()
    from pipelines.stage import process

    process.set_up_logging()  # libraries look at levels and variables when they are imported
    pid = os.getpid()
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])), children)
    if arguments is None:
        stop()
    else:
        _become(arguments, pid)


def _serve(channel: socket.socket, children: dict[int, tuple[int, int]]) -> list[str] | None:
    """Fork for each request; returns what to run in a fork, and None in the server once the owner has let go."""
    while True:
        ready, _, _ = select.select([channel.fileno(), *children], [], [])
        for descriptor in set(ready) & children.keys():
            _reap(descriptor, *children.pop(descriptor))
        if channel.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 4)
        if not message:
            return None
        request = json.loads(message)
        for name in request["libraries"]:
            _import(name)
        gc.freeze()  # a collection would write to pages that forks share
        *streams, status = descriptors
        _hand_on_output(streams[1])
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a fork must not answer it as the server does
        pid = os.fork()
        if pid == 0:
            channel.close()
            _close(status, *children, *(other for _, other in children.values()))
            for target, descriptor in enumerate(streams):
                os.dup2(descriptor, target)
            _close(*streams)
            return [*request["arguments"]]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        try:
            os.write(status, NUMBER.pack(pid))
        except BrokenPipeError:  # abandoned
            os.kill(pid, signal.SIGKILL)
        children[os.pidfd_open(pid)] = pid, status
        _close(*streams)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _reap(descriptor: int, pid: int, status: int) -> None:
    """End what a fork that has ended left of its group, and say how it ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, ending = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(status, NUMBER.pack(ending))
    _close(status, descriptor)


def _import(name: str) -> None:
    """Import a module of an installed library; others, and those that cannot be imported, are the fork's own affair."""
    if name in sys.modules:
        return
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
        places = [Path(path) for key, path in sysconfig.get_paths().items() if key in ("purelib", "platlib")]
        if spec and spec.origin and any(Path(spec.origin).is_relative_to(place) for place in places):
            importlib.import_module(name)
    except BaseException:  # other people's code: SystemExit too
        return


def _hand_on_output(output: int) -> None:
    """Give what libraries have written while they were imported to a fork, as it would have seen it."""
    written = os.pread(1, os.fstat(1).st_size, 0)
    if written:
        os.write(output, written)


def _become(arguments: list[str], server: int) -> None:
    """Be `python -m ARGUMENTS`, in a session of its own and with the project's code as it is now; the server's end is its end."""
    os.setsid()
    owner.die_with_parent(signal.SIGKILL)
    if os.getppid() != server:
        os._exit(owner.ORPHANED)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    from pipelines.stage import launch

    os.environ.update(launch.alone(server))
    _show_as(arguments)
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _show_as(arguments: list[str]) -> None:
    """Write over the command line that `ps` shows."""
    fields = owner.stat(os.getpid())
    if fields is None:
        return
    start, end = int(fields[45]), int(fields[46])  # after state, which is the third: arg_start is the 48th
    command = b"\0".join(os.fsencode(a) for a in [sys.executable, *arguments])[: end - start - 1]
    ctypes.memmove(start, command.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
