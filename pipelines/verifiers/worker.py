"""A verifier's worker process: rows in, verdicts out. It trusts nobody to end it but SIGKILL."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import mmap
import os
import pickle
import resource
import signal
import socket
import time
import traceback
from pathlib import Path
from typing import Any

from pipelines.base.owner import die_with_parent
from pipelines.verifiers._wire import HEADER, PROGRESS
from pipelines.verifiers.in_process import extract_here, verify_here

SEND_AFTER_S, SEND_CHARS = 0.005, 1 << 14
"""Verdicts wait at most so long for those that follow, and until they are so many characters: each message wakes the owner."""


def confine(parent: int, memory_bytes: int) -> None:
    """Limit this process and tie its life to its parent's.

    Args:
        parent: process id of the server that forked it; if that is gone already, the process exits.
        memory_bytes: address space it may grow to.
    """
    os.setsid()
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    with contextlib.suppress(OSError):  # a container may forbid it; the limit below holds all the same
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(connection: socket.socket, progress: mmap.mmap, limits: dict[str, Any]) -> None:
    """`serve`; a bug of the worker itself, which no row can cause, is reported in a line `{"bug": traceback}`."""
    try:
        serve(connection, progress, limits)
    except (ConnectionError, MemoryError):
        raise
    except Exception:
        _send(connection, {"bug": traceback.format_exc()})


def serve(connection: socket.socket, progress: mmap.mmap, limits: dict[str, Any]) -> None:
    """Answer messages until the owner hangs up or the worker has had its share of rows.

    What comes back are lines of JSON: `replies` of the next rows of the message, in order (an extracted answer, or score, status and
    components), `cpu` (seconds of processor time so far), and `last`, which says that the worker exits and has not begun the rest.
    """
    rows_left = int(limits["rows_per_worker"])
    while True:
        header = _read(connection, HEADER.size)
        if header is None:
            return
        body = _read(connection, HEADER.unpack(header)[0])
        if body is None:
            return
        rows = pickle.loads(body)  # from the owner, which is trusted; what goes back is JSON
        _second_net(len(rows), float(limits["cpu_s"]))
        replies: list[str | list[Any]] = []
        chars, sent = 0, time.monotonic()
        for number, (kind, name, completion, answer, info) in enumerate(rows, 1):
            PROGRESS.pack_into(progress, 0, number, time.process_time(), time.monotonic())
            reply, exhausted = _answer(kind, name, completion, answer, pickle.loads(info))
            replies.append(reply)
            chars += len(reply if isinstance(reply, str) else str(reply[2]))
            rows_left -= 1
            last = rows_left <= 0 or exhausted
            if last or number == len(rows) or chars >= SEND_CHARS or time.monotonic() - sent >= SEND_AFTER_S:
                _send(connection, {"replies": replies, "cpu": time.process_time(), "last": last})
                replies, chars, sent = [], 0, time.monotonic()
            if last:
                return


def _answer(kind: str, name: str, completion: str, answer: str, info: dict[str, Any]) -> tuple[str | list[Any], bool]:
    """The reply, and whether the worker has no memory left."""
    if kind == "extract":
        try:
            return extract_here(name, completion), False
        except (Exception, MemoryError) as error:
            return "", isinstance(error, MemoryError)
    verdict = verify_here(name, completion, answer, info)
    exhausted = "error/MemoryError" in verdict.components
    if exhausted:
        gc.collect()
    return [verdict.score, verdict.status, verdict.components], exhausted


def _second_net(rows: int, cpu_s: float) -> None:
    """End the process through the kernel should its owner be too busy to: whole seconds of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + rows * cpu_s) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _send(connection: socket.socket, reply: dict[str, Any]) -> None:
    connection.sendall(json.dumps(reply).encode() + b"\n")


def _read(connection: socket.socket, size: int) -> bytes | None:
    chunks, missing = [], size
    while missing:
        chunk = connection.recv(min(missing, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)
