"""`python -P -s -S zygote.py SETTINGS FD`: a warm interpreter that makes one sealed process per program.

Its only input is a packet socket: `run` with three descriptors (stdin, stdout, the program's socket), or
`kill`. It never reads what a program is sent, so nothing of one program is in the memory of the next.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import fcntl
import gc
import importlib.abc
import importlib.machinery
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import commands
import confine
import harness

sys.path.pop(0)

CONTROL = 3
"""The zygote's packet socket; in a program's process, the program's own socket."""
DESCRIPTORS = 256
"""Open descriptors of the zygote at most."""
TOLD, RULESET = 4, 5
"""In a new process: where it says what went wrong, and landlock's ruleset. Both are closed before the program runs."""
PACKET = 1 << 12
WARM = """
array ast bisect builtins calendar cmath collections contextlib copy csv datetime decimal enum fractions functools hashlib
heapq html io itertools json math operator os queue random re sqlite3 statistics string struct sys textwrap threading time
traceback types typing unicodedata
"""
"""Modules that programs find loaded."""


def main() -> None:
    """Serve until the owner hangs up; then every program dies."""
    settings, inherited = json.loads(sys.argv[1]), int(sys.argv[2])
    if inherited != CONTROL:
        os.dup2(inherited, CONTROL, inheritable=False)
        os.close(inherited)
    for name in WARM.split():
        __import__(name)
    sys.meta_path.append(Packages(settings["packages"]))
    for name in ("exit", "quit"):  # what the module site adds, which is not loaded
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    if settings["drop_to"]:
        _drop(settings["drop_to"])
    confine.libc.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    owner = os.getppid()
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    ruleset = confine.landlock_ruleset(settings["readable"]) if settings["level"] == "landlock" else None
    control = socket.socket(fileno=CONTROL)
    gc.collect()
    gc.freeze()
    nowhere = os.open(os.devnull, os.O_RDWR)
    control.send(json.dumps({"ready": os.getpid()}).encode())
    os.dup2(nowhere, 2)  # until here, errors are for the owner
    programs = Programs(control, settings["level"], ruleset)
    while True:
        for descriptor, _ in programs.poll.poll(programs.patience_ms()):
            if descriptor != CONTROL:
                programs.reap(descriptor)
                continue
            packet, descriptors, _, _ = socket.recv_fds(control, PACKET, 3)
            if not packet:
                programs.kill_all()
                return
            request = json.loads(packet)
            if request["op"] == "run":
                programs.start(request, descriptors)
            else:
                programs.kill(request["id"])
        programs.kill_late()
        if os.getppid() != owner:
            programs.kill_all()
            return


class Packages(importlib.abc.MetaPathFinder):
    """Finds the packages that programs may import beside the standard library, and nothing else in their folder.

    Args:
        folders: package → folder that it is in.
    """

    def __init__(self, folders: dict[str, str]) -> None:
        self.folders = folders
        for name in folders:  # a sealed program may not be able to list the folder: its contents are kept by the finder
            self.find_spec(name)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a listed package."""
        if path is not None or fullname not in self.folders:
            return None
        return importlib.machinery.PathFinder.find_spec(fullname, [self.folders[fullname]], target)


def _drop(uid: int) -> None:
    """Give up root for a user id that nobody has."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    confine.libc.prctl(
        confine.PR_SET_DUMPABLE, 1, 0, 0, 0
    )  # else /proc/self is root's, and no user namespace can be mapped


class Programs:
    """The processes that are alive: one per program, each killed at its deadline."""

    def __init__(self, control: socket.socket, level: str, ruleset: int | None) -> None:
        self.control, self.level, self.ruleset = control, level, ruleset
        self.alive: dict[int, tuple[int, int, float]] = {}
        """pidfd → (the owner's number, process id, deadline by the monotonic clock)."""
        self.troubles: dict[int, int] = {}
        """pidfd → a pipe on which a process says why it could not become a program's."""
        self.late: set[int] = set()
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)

    def patience_ms(self) -> float:
        """How long nothing is due."""
        if not self.alive:
            return 1000.0
        return max(0.0, min(1.0, min(d for _, _, d in self.alive.values()) - time.monotonic())) * 1000 + 1

    def start(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Make the process of one program."""
        uid, gid = os.getuid(), os.getgid()
        trouble, told = os.pipe()
        if self.level == "namespaces":
            flags = confine.CLONE_NEWUSER | confine.CLONE_NEWPID | confine.CLONE_NEWNS | confine.CLONE_NEWIPC
            pid = confine.libc.syscall(CLONE[confine.machine()], flags | signal.SIGCHLD, 0, 0, 0, 0)
            confine.check(pid, "clone into new namespaces")
        else:
            pid = os.fork()
        if pid == 0:
            try:
                self._move([*descriptors, told])
                self._become(request, uid, gid)
            except BaseException as error:
                os.write(TOLD, f"{type(error).__name__}: {error}"[:300].encode())
                os._exit(1)
            os.close(TOLD)  # from here on it is the program's process, and what it says is no news of the sandbox
            harness.main(CONTROL)
        for descriptor in [*descriptors, told]:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self.alive[pidfd] = (request["id"], pid, time.monotonic() + request["wall_s"])
        self.troubles[pidfd] = trouble
        self.poll.register(pidfd, select.POLLIN)

    def _move(self, descriptors: list[int]) -> None:
        """Put the descriptors of a new process where it expects them, and close all others."""
        wanted = [*descriptors, *([] if self.ruleset is None else [self.ruleset])]
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in wanted]
        targets = (0, 1, CONTROL, TOLD, RULESET)[: len(wanted)]
        for target, descriptor in zip(targets, high, strict=True):
            os.dup2(descriptor, target)
        os.closerange(targets[-1] + 1, DESCRIPTORS)

    def _become(self, request: dict[str, Any], uid: int, gid: int) -> None:
        """Namespaces, limits and the seal of a new process."""
        confine.libc.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        folders: dict[str, int] = request.get("folders", {})
        if folders:
            commands.watch_processes()
        if self.level == "namespaces":
            confine.enter_namespaces(uid, gid, folders)
        else:
            os.setsid()
        alone = self.level == "namespaces" or uid >= 1 << 20
        confine.limit(request["limits"], 64 if alone else None)
        random.seed(0)  # equal programs behave equally
        confine.seal(os.getpid(), None if self.ruleset is None else RULESET, commands=bool(folders))
        if self.ruleset is not None:
            os.close(RULESET)

    def reap(self, pidfd: int) -> None:
        """A program has ended: tell the owner how."""
        number, pid, _ = self.alive.pop(pidfd)
        self.poll.unregister(pidfd)
        os.close(pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        trouble = self.troubles.pop(pidfd)
        broken = os.read(trouble, 1000).decode(errors="replace")
        os.close(trouble)
        late = number in self.late
        self.late.discard(number)
        self.control.send(json.dumps({"id": number, "status": status, "late": late, "broken": broken}).encode())

    def kill(self, number: int) -> None:
        """End a program; nothing where it has ended."""
        for other, pid, _ in self.alive.values():
            if other == number:
                os.kill(pid, signal.SIGKILL)

    def kill_late(self) -> None:
        """End the programs whose time is over."""
        now = time.monotonic()
        for number, pid, deadline in self.alive.values():
            if now >= deadline and number not in self.late:
                self.late.add(number)
                os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        """End every program."""
        for _, pid, _ in self.alive.values():
            os.kill(pid, signal.SIGKILL)


CLONE = {"x86_64": 56, "aarch64": 220}

if __name__ == "__main__":
    main()
