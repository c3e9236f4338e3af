"""`python -m pipelines.verifiers.server FD OWNER`: forks verifier workers from a process without torch, threads or CUDA.

The owner sends one request a packet: `fork` (with the worker's end of a socket pair and the memory for its progress) or `end`
(SIGKILL and reap). The server never sees a completion, so nothing a model wrote can stop it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import mmap
import os
import select
import signal
import socket
import sys
from typing import Any

from pipelines.verifiers import worker
from pipelines.verifiers._wire import PROGRESS

PACKET = 1 << 16
POLL_MS = 1000


def main(control: socket.socket, owner: int) -> None:
    """Serve requests until the owner closes its end or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: set[int] = set()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    try:
        while True:
            if not poll.poll(POLL_MS):
                if os.getppid() != owner:
                    return
                continue
            packet, descriptors, _, _ = socket.recv_fds(control, PACKET, 2)
            if not packet:
                return
            request = json.loads(packet)
            if request["op"] == "fork":
                pid = _fork(control, descriptors, request)
                children.add(pid)
                control.send(json.dumps({"pid": pid}).encode())
            else:
                children.discard(request["pid"])
                control.send(json.dumps({"status": _end(request["pid"])}).encode())
    finally:
        for pid in children:
            _end(pid)


def _fork(control: socket.socket, descriptors: list[int], request: dict[str, Any]) -> int:
    _load(request["load"])
    gc.collect()
    gc.freeze()
    server = os.getpid()
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    try:
        worker.confine(server, int(request["limits"]["memory_bytes"]))
        control.close()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # libraries print and log what they cannot parse
            os.dup2(nowhere, standard)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        shared = mmap.mmap(descriptors[1], PROGRESS.size)
        os.close(descriptors[1])
        with socket.socket(fileno=descriptors[0]) as connection, contextlib.suppress(ConnectionError):
            connection.setblocking(True)
            worker.run(connection, shared, request["limits"])
        os._exit(0)
    finally:
        os._exit(1)


def _load(wanted: list[str]) -> None:
    """Import verifiers (`math`) and warm what they cache (`reasoning_gym/knights_knaves`) before the fork, once."""
    for entry in wanted:
        if entry not in _loaded:
            _loaded.add(entry)
            name, _, detail = entry.partition("/")
            module = importlib.import_module(f"pipelines.verifiers.{name}")
            if hasattr(module, "warm"):
                module.warm(detail)


_loaded: set[str] = set()


def _end(pid: int) -> int:
    """Kill and reap a child; returns its wait status."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return 0


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
