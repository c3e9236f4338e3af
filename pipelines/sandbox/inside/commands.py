"""A command of a shell, between the seal and the end of its process: the working folder is laid out, the command runs, the folder is read.

This process is init of its process namespace. What the command starts are its descendants and end before the folder is read, so nothing
can change a file meanwhile, and nothing is left of them. They have no descriptor of it and cannot signal, trace or read it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import signal
import stat
import time
from typing import Any

import wire
from confine import SCRATCH, SHELL, WORK

PATH = "/z/bin:/usr/bin:/bin"
OWN_DESCRIPTORS = 3
"""Those from this one on stay here."""
DESCRIPTORS = 256
POLL_S = 0.02
"""How often a command's end and its memory are looked for, where it is silent."""
RUNAWAY_BYTES = 1 << 20
"""A command that prints more is ended."""
FIXED_TIME = 946684800
"""Modification time of every file that is laid out, so that equal folders are equal in this too."""
_proc = -1
"""The list of processes as the zygote's namespace has it, which programs do not see."""


def watch_processes() -> None:
    """Keep /proc for this process, before it is masked."""
    global _proc
    _proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def shell(connection: Any, request: dict[str, Any]) -> int:
    """Run one command in a folder of files, and send what it printed, how it ended and what the folder holds then."""
    lay_out(WORK, request["files"])
    printed, code, ended = _run(request)
    reply = {"output": printed.decode("utf-8", "replace"), "code": code, "ended": ended}
    try:
        message = wire.frame({**reply, "files": collect(WORK, request["files_bytes"], request["entries"])})
    except (OSError, wire.Uncrossable) as error:
        message = wire.frame({**reply, "refused": str(error)[:200]})
    connection.sendall(message)
    return 0


def lay_out(root: str, files: dict[str, Any]) -> None:
    """Write a folder's entries: path → mode, kind (file, folder or link) and content."""
    for path, (_, kind, content) in sorted(files.items()):
        where = os.path.join(root, path)
        os.makedirs(where if kind == "folder" else os.path.dirname(where), exist_ok=True)
        if kind == "link":
            os.symlink(content, where)
        elif kind == "file":
            with open(where, "xb") as handle:
                handle.write(base64.b64decode(content))
    for path, (mode, kind, _) in sorted(files.items(), reverse=True):
        where = os.path.join(root, path)
        os.utime(where, (FIXED_TIME, FIXED_TIME), follow_symlinks=False)
        if kind != "link":
            os.chmod(where, int(mode, 8))


def collect(root: str, most_bytes: int, most_entries: int) -> dict[str, list[str]]:
    """What `lay_out` would need to make the folder again. Links are not followed; pipes and sockets are left out.

    Raises:
        OSError: it holds more than it may.
    """
    files: dict[str, list[str]] = {}
    folders, left = [""], most_bytes
    while folders:
        folder = folders.pop()
        for name in sorted(os.listdir(os.path.join(root, folder))):
            path = os.path.join(folder, name)
            where = os.path.join(root, path)
            about = os.lstat(where)
            mode = oct(about.st_mode & 0o777)[2:]
            if len(files) >= most_entries:
                raise OSError(f"more than {most_entries} files and folders")
            if stat.S_ISLNK(about.st_mode):
                files[path] = [mode, "link", os.readlink(where)]
            elif stat.S_ISDIR(about.st_mode):
                os.chmod(where, 0o700)
                files[path] = [mode, "folder", ""]
                folders.append(path)
            elif stat.S_ISREG(about.st_mode):
                left -= about.st_size
                if left < 0:
                    raise OSError(f"more than {most_bytes} bytes in files")
                os.chmod(where, 0o600)
                with open(os.open(where, os.O_RDONLY | os.O_NOFOLLOW), "rb") as handle:
                    files[path] = [mode, "file", base64.b64encode(handle.read()).decode()]
    return files


def _run(request: dict[str, Any]) -> tuple[bytes, int, str]:
    """What the command printed, its exit code as a shell counts it, and what ended it; empty where it ended by itself."""
    until = time.monotonic() + request["seconds"]
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(writable, request)
    os.close(writable)
    os.set_blocking(readable, False)
    printed, status, ended, is_open = bytearray(), None, "", True
    while status is None and not ended:
        if is_open:
            select.select([readable], [], [], POLL_S)
            is_open = _read(readable, printed)
        else:
            time.sleep(POLL_S / 8)
        status = _reaped(pid)
        if status is not None:
            break
        if len(printed) > RUNAWAY_BYTES:
            ended = "overflow"
        elif time.monotonic() >= until:
            ended = "timed_out"
        elif _memory() > request["memory_bytes"]:
            ended = "memory"
    last = _end_all(pid)
    status = last if status is None else status
    _read(readable, printed)
    if len(printed) > RUNAWAY_BYTES:
        ended = ended or "overflow"  # whether it ended by itself meanwhile is chance
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    return bytes(printed[: request["output_bytes"]]), code if code >= 0 else 128 - code, ended


def _become(output: int, request: dict[str, Any]) -> None:
    """Of the child: run the shell. Does not return."""
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output if request["errors"] else 0, 2)
        os.closerange(OWN_DESCRIPTORS, DESCRIPTORS)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(WORK)
        environment = {**os.environ, "HOME": WORK, "PATH": PATH, "TMPDIR": SCRATCH, "PYTHONNOUSERSITE": "1"}
        os.execve(SHELL, ["bash", "--noprofile", "--norc", "-c", request["command"]], environment)
    finally:
        os._exit(127)


def _read(readable: int, printed: bytearray) -> bool:
    """Take what there is; whether more can come."""
    while len(printed) <= RUNAWAY_BYTES:
        try:
            chunk = os.read(readable, 1 << 16)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        printed += chunk
    return True


def _reaped(wanted: int) -> int | None:
    """Collect the dead; the status of the one that is waited for, where it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitpid(-1, os.WNOHANG))[0]:
            status = dead[1] if dead[0] == wanted else status
    return status


def _end_all(wanted: int) -> int | None:
    """End every process that the command has started; the status of the command itself, where it still ran."""
    status = None
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            dead = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        status = dead[1] if dead[0] == wanted else status


def _memory() -> int:
    """Bytes of memory of all processes of the command, pages of files left out."""
    total = 0
    for name in os.listdir(_proc):
        if not name.isdecimal():
            continue
        try:
            with open(os.open(f"{name}/status", os.O_RDONLY, dir_fd=_proc)) as handle:
                about = dict(line.split(":", 1) for line in handle)
        except OSError:
            continue
        ids = about.get("NSpid", "").split()
        if len(ids) > 1 and ids[-1] != "1":  # init is not the command's
            total += sum(int(about[part].split()[0]) for part in ("RssAnon", "RssShmem") if part in about)
    return total << 10
