"""Which confinement this machine allows, tried for real."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from functools import cache
from pathlib import Path

from pipelines.sandbox import SandboxError
from pipelines.sandbox.inside import confine
from pipelines.sandbox.levels import LEVELS, Level, bubblewrap


@cache
def trouble(level: Level) -> str:
    """Why a level cannot be had here; empty where its probe passes."""
    from pipelines.sandbox.worker import Worker

    if sys.platform != "linux":
        return "it needs Linux"
    try:
        confine.machine()
        worker = Worker(level)
    except (OSError, SandboxError) as error:
        return f"{str(error).rstrip('.')}{_cause(level, str(error))}"
    with (
        contextlib.closing(worker),
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        os.chmod(folder, 0o777)
        planted = Path(folder, "planted")
        planted.write_text("x")
        with worker.run({"mode": "functions", "source": _PROBE}) as program:
            ready = program.ask(None)
            arguments = [str(planted), server.getsockname()[1], folder]
            reply = program.ask({"name": "reached", "args": arguments, "kwargs": {}}) if "ready" in ready else ready
    open_ways = reply.get("value")
    if not isinstance(open_ways, list):
        return f"the probe did not finish ({reply})"
    if level == "limits_only":
        open_ways = [way for way in open_ways if "file" not in way]
    return f"a program inside it could {' and '.join(open_ways)}" if open_ways else ""


def _cause(level: Level, message: str) -> str:
    """The common cause of a failure, and what helps, as a clause."""
    if level != "namespaces" or bubblewrap() is None:
        return ""
    if _kernel_setting("kernel/apparmor_restrict_unprivileged_userns") == "1" and os.geteuid() != 0:
        return (
            "; AppArmor restricts user namespaces: install the distribution's bubblewrap with an AppArmor profile that allows "
            "`userns` for it, or set kernel.apparmor_restrict_unprivileged_userns=0"
        )
    for name in ("user/max_user_namespaces", "kernel/unprivileged_userns_clone"):
        if _kernel_setting(name) == "0":
            return f"; {name.replace('/', '.')} is 0: ask the administrator to allow user namespaces"
    if "mount proc" in message.lower():
        return "; /proc is masked, as in most containers: give the container an unmasked /proc"
    with contextlib.suppress(OSError):
        if "\nSeccomp:\t2" in Path("/proc/self/status").read_text():
            return "; a seccomp profile denies namespaces: run the container with one that allows unshare and clone"
    return ""


def _kernel_setting(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""


def best(limits_only: bool = False) -> Level:
    """The strongest level that its probe finds whole.

    Args:
        limits_only: whether the weakest will do: programs could then read and write whatever the user can.

    Raises:
        SandboxError: there is none.
    """
    reasons = []
    for level in LEVELS if limits_only else LEVELS[:-1]:
        why = trouble(level)
        if not why:
            return level
        reasons.append(f"{level}: {why}")
    fix = "" if limits_only else "Set `sandbox: limits_only` in the recipe to go without, at your files' risk."
    raise SandboxError("sandbox", f"programs cannot be confined here. {'. '.join(reasons)}", fix)


_PROBE = """
import os, socket
def reached(file, port, folder):
    def works(action):
        try:
            action()
            return True
        except OSError:
            return False
    return [name for name, action in (
        ("read a file", lambda: open(file).read()),
        ("connect to a port", lambda: socket.create_connection(("127.0.0.1", port), 1)),
        ("make a process", lambda: os.fork() or os._exit(0)),
        ("write a file", lambda: open(os.path.join(folder, "written"), "w")),
    ) if works(action)]
"""
