"""Runs one program and leaves nothing of it behind; a process of its own, started with its file's path and no packages.

It reads one line of JSON from its standard input: `command`, `environment`, `task`, `output` (bytes that the program may print) and
`result_file` (or null). The program runs in a new folder with the task as its standard input (`_preload_host` forks this process and the
program from one that has imported what the program imports). When the program has ended, has
printed too much, or the other side of the standard input is closed (by whatever end of the process that started it), everything
that the program has started is killed and the folder removed. On Linux that holds for processes that left the program's group too:
they become children of this process. What came of it is one line of JSON: `code`, `stdout`, `stderr` (their ends), `result` (text of
the file, or null) and `overflow`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable

KEPT = 65536
"""Bytes of standard output and of the result's file that are told; of standard error an eighth."""
NOT_STARTED = 127
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(program: Callable[[list[str], dict[str, str]], None]) -> None:
    """Run the program that standard input describes.

    Args:
        program: becomes it, from its command and its environment, in a process with its streams and its folder; need not return.
    """
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 20)
        if not part:
            return
        line += part
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = tempfile.mkdtemp(
        prefix="agent-"
    )  # the program, if it is a fork of this process, must not remove it at its own end
    try:
        told = _run(json.loads(line), folder, program)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    left = json.dumps(told).encode() + b"\n"
    with contextlib.suppress(OSError):  # nobody wants to know
        while left:
            left = left[os.write(1, left) :]


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _run(
    spec: dict[str, object], folder: str, program: Callable[[list[str], dict[str, str]], None]
) -> dict[str, object]:
    streams = [os.pipe(), os.pipe()]
    woken, wake = os.pipe2(os.O_NONBLOCK) if hasattr(os, "pipe2") else os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    keeper, child = os.getpid(), os.fork()
    if child == 0:
        for number in (woken, wake, *(end for end, _ in streams)):
            os.close(number)
        _become(spec, folder, keeper, [end for _, end in streams], program)
    for _, end in streams:
        os.close(end)
    outputs = [_Output(streams[0][0], KEPT), _Output(streams[1][0], KEPT // 8)]
    limit = int(str(spec["output"]))
    code = _watch(child, outputs, woken, limit)
    _end_all(child)
    for output in outputs:
        while output.open and output.total <= limit:  # nobody is left who could write
            output.read()
    name = spec["result_file"]
    return {
        "code": code,
        "stdout": outputs[0].text,
        "stderr": outputs[1].text,
        "result": None if name is None else _file(os.path.join(folder, str(name))),
        "overflow": any(output.total > limit for output in outputs),
    }


def _become(
    spec: dict[str, object],
    folder: str,
    keeper: int,
    ends: list[int],
    program: Callable[[list[str], dict[str, str]], None],
) -> None:
    """The program in place of this process; never returns."""
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(NOT_STARTED)
        task = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is the program's
        task.write(str(spec["task"]).encode(errors="replace"))
        task.seek(0)
        for number, end in enumerate((task.fileno(), *ends)):
            os.dup2(end, number)
        task.close()
        for end in ends:
            os.close(end)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.chdir(folder)
        command: list[str] = list(spec["command"])  # type: ignore[call-overload]
        environment: dict[str, str] = {**spec["environment"], "TMPDIR": folder}  # type: ignore[dict-item]
        program(command, environment)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(NOT_STARTED)


def execute(command: list[str], environment: dict[str, str]) -> None:
    """The command in place of this process."""
    os.execvpe(command[0], command, environment)


class _Output:
    """The end of what is written into a pipe."""

    def __init__(self, pipe: int, kept: int) -> None:
        self.pipe, self.kept, self.total, self.open, self._end = pipe, kept, 0, True, b""

    def read(self) -> None:
        part = os.read(self.pipe, KEPT)
        self.open = bool(part)
        self.total += len(part)
        self._end = (self._end + part)[-self.kept :]

    @property
    def text(self) -> str:
        return self._end.decode(errors="replace")


def _watch(child: int, outputs: list[_Output], woken: int, limit: int) -> int:
    """Exit code of the program, minus the signal that ended it; -SIGKILL where it is to be killed."""
    poll = select.poll()
    for number in (0, woken, *(output.pipe for output in outputs)):
        poll.register(number, select.POLLIN)
    while True:
        ready = [number for number, _ in poll.poll()]
        for output in outputs:
            if output.pipe in ready:
                output.read()
                if not output.open:
                    poll.unregister(output.pipe)
                if output.total > limit:
                    return -signal.SIGKILL
        if woken in ready:
            os.read(woken, 4096)
            for pid, status in _reaped():
                if pid == child:
                    return os.waitstatus_to_exitcode(status)
        if 0 in ready and not os.read(0, 4096):
            return -signal.SIGKILL


def _reaped() -> list[tuple[int, int]]:
    """Children that have ended, and how."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended.append((pid, status))
    return ended


def _end_all(child: int) -> None:
    """Kill the program's group and whatever of it has become a child of this process, until there is none."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
        _reaped()


def _children() -> list[int]:
    """Processes whose parent is this one, those that wait to be reaped too; elsewhere than on Linux none."""
    children = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as handle:
                if int(handle.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    children.append(int(name))
    return children


def _file(path: str) -> str | None:
    """The text of the result's file; None where the program has written none."""
    try:
        with open(path, "rb") as handle:
            return handle.read(KEPT).decode(errors="replace")
    except OSError:
        return None


if __name__ == "__main__":
    main(execute)
