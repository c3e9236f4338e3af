"""Process ownership: a child ends with the process that started it, however that one ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

PARENT = "WHETSTONE_PARENT"
"""Environment variable: pid of the process that started this one and must outlive it."""
ORPHANED = 137
POLL_S = 0.3
PR_SET_PDEATHSIG = 1


def started(pid: int) -> str | None:
    """When a process was started, in ticks since boot, so that a reused pid is told from the old one; None: not there.

    Elsewhere than on Linux, psutil's start time in seconds.
    """
    if sys.platform == "linux":
        fields = stat(pid)
        return fields[19] if fields else None
    import psutil

    with contextlib.suppress(psutil.Error):
        return str(psutil.Process(pid).create_time())
    return None


def running(pid: int) -> bool:
    """Whether a process is there and has not ended; one that has ended and was not reaped yet is not."""
    if sys.platform == "linux":
        fields = stat(pid)
        return fields is not None and fields[0] != "Z"
    import psutil

    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def stat(pid: int) -> list[str] | None:
    """The fields of `/proc/PID/stat` after the program's name, which may hold anything: state first; None: not there."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as handle:
        return handle.read().rpartition(")")[2].split() or None
    return None


def die_with_parent(signum: int) -> None:
    """Ask the kernel for a signal when the parent ends (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)


def bind(parent: int, signum: int, on_orphaned: Callable[[], None]) -> None:
    """Tie this process to its parent's life.

    Args:
        parent: the pid that the parent must have. If it is another one, the parent is gone already.
        signum: what the kernel sends when the parent ends (Linux; elsewhere only the watcher below notices).
        on_orphaned: called from a thread within `POLL_S` of the parent's end, and at once if it is gone already.

    The kernel's signal comes when the parent's *thread* that started us ends, so start children from a thread that
    waits for them.
    """
    die_with_parent(signum)
    if os.getppid() != parent:
        on_orphaned()
    watch(parent, on_orphaned)


def watch(parent: int, on_orphaned: Callable[[], None]) -> None:
    """Call `on_orphaned` from a thread within `POLL_S` of the parent's end."""

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_S)
        on_orphaned()

    threading.Thread(target=wait, daemon=True, name="parent-watch").start()


def bind_rank() -> None:
    """Tie a stage's process to the launcher named in the environment; nothing for one that was started by hand."""
    parent = os.environ.get(PARENT)
    if parent:
        bind(int(parent), signal.SIGKILL, lambda: os._exit(ORPHANED))


def check() -> None:
    """Exit if the launcher has ended meanwhile: called after imports that take seconds."""
    parent = os.environ.get(PARENT)
    if parent and os.getppid() != int(parent):
        os._exit(ORPHANED)


class Process(Protocol):
    """What is used of a child process: a `subprocess.Popen`, or something of that form."""

    @property
    def pid(self) -> int:
        """Its process, and the group that it leads."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def wait(self) -> int:
        """Its exit code, once it has ended."""


def end_group(child: Process, patience_s: float = 5.0) -> None:
    """Stop a process that leads a group, and everything it started in it.

    Args:
        patience_s: seconds between SIGTERM and SIGKILL.
    """
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        until = time.monotonic() + patience_s
        while child.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
