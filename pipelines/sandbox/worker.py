"""One sandbox process and the programs in it, from outside: limits, deadlines, and the end of both."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.sandbox import SandboxError
from pipelines.sandbox.inside import wire

START_S = 60.0
"""How long a sandbox may take to start; 0.05 s is usual."""
OVERDUE_S = 2.0
"""A program that its own side did not end by then costs the whole sandbox process."""


REQUEST_BYTES = 1 << 30
START_PROGRAM_S = 0.25
"""How long a program may take to start; 0.01 s is usual."""
REPLY_DEPTH = 3 * (wire.DEPTH + 2)
"""Levels of nesting of a reply: a dict is three of them."""
LINGER_S = 0.3
"""How long a program that has hung up may take to end by itself."""
CPU_SIGNALS = (-int(signal.SIGKILL), -int(signal.SIGXCPU))
"""How the kernel ends a process that has used its processor time."""


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    cpu_s: int = 3
    """Processor time in whole seconds."""
    wall_factor: float = 3.0
    """Wall time, in processor times: others may use the processor."""
    memory_bytes: int = 512 << 20
    """Address space."""
    file_bytes: int = 1 << 20
    """Size of a file, where it could write one."""
    output_bytes: int = 1 << 20
    """Of standard output. Replies have limits of their own."""

    @property
    def wall_s(self) -> float:
        """Wall time in seconds."""
        return self.cpu_s * self.wall_factor

    def together_s(self, programs: int) -> float:
        """Wall time in seconds of so many programs, one after another, that one answer is judged by."""
        return 3 * self.wall_s + START_PROGRAM_S * programs


class Broken(Exception):
    """The sandbox process itself is gone or silent; not a verdict about a program."""


class Worker:
    """A sandbox process. One thread uses it, and that thread must outlive it.

    Raises:
        SandboxError: it does not start; the message has what it printed.
    """

    def __init__(self, level: Any) -> None:
        from pipelines.sandbox import levels

        self.level = level
        self.ids = itertools.count()
        self.ended: dict[int, dict[str, Any]] = {}
        self.until = math.inf
        """When every program of the job in hand must have ended, by the monotonic clock."""
        drop_to = levels.unused_uid(level, next(_WORKERS))
        settings = json.dumps({
            "level": level, "drop_to": drop_to, "readable": levels.readable(), "packages": levels.package_folders(level),
        })  # fmt: skip
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, tempfile.TemporaryFile() as errors:
            self.process = subprocess.Popen(
                [*levels.command(level, settings), str(there.fileno())],
                env=levels.environment(),
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                start_new_session=True,
            )
            self.control = here
            there.close()
            try:
                ready = self._packet(START_S)
            except Broken:
                ready = None
            if ready is None:
                self.close()
                errors.seek(0)
                printed = errors.read(4000).decode(errors="replace").strip().splitlines()
                raise SandboxError(
                    f"it did not start ({printed[-1][:300] if printed else 'no word from it'})"
                ) from None

    @contextlib.contextmanager
    def run(
        self, request: dict[str, Any], limits: Limits | None = None, stdin: bytes | None = None
    ) -> Iterator[Program]:
        """A program's process, from its first line to its certain end.

        Args:
            request: mode, source and what else `harness.py` reads.
            stdin: what the program reads, for mode `script`.

        Raises:
            Broken: the sandbox process failed.
        """
        program = Program(self, request, limits or Limits(), stdin)
        try:
            yield program
        finally:
            program.close()

    @property
    def left_s(self) -> float:
        """Seconds until `until`."""
        return max(0.0, self.until - time.monotonic())

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """A request to the zygote."""
        try:
            socket.send_fds(self.control, [json.dumps(message).encode()], descriptors or [])
        except OSError as error:
            raise Broken(str(error)) from None

    def outcome(self, number: int, patience_s: float) -> dict[str, Any] | None:
        """How a program ended: status, whether it was late, and what broke before it began; None: not in this time.

        Raises:
            Broken: the sandbox process is gone.
        """
        until = time.monotonic() + patience_s
        while number not in self.ended:
            packet = self._packet(until - time.monotonic())
            if packet is None:
                return None
            self.ended[packet["id"]] = packet
        return self.ended.pop(number)

    def _packet(self, patience_s: float) -> dict[str, Any] | None:
        ready, _, _ = select.select([self.control], [], [], max(0.0, patience_s))
        if not ready:
            return None
        try:
            packet = self.control.recv(1 << 12)
        except OSError:
            packet = b""
        if not packet:
            raise Broken("the sandbox process is gone")
        return json.loads(packet)

    def close(self) -> None:
        """End the process and everything in it."""
        self.control.close()
        self.process.kill()
        self.process.wait()


_WORKERS = itertools.count()


class Program:
    """A running program. What comes from it is data to judge; every wait has an end."""

    def __init__(self, worker: Worker, request: dict[str, Any], limits: Limits, stdin: bytes | None) -> None:
        self.worker, self.limits = worker, limits
        self.number = next(worker.ids)
        wall_s = min(limits.wall_s, worker.left_s)
        self.deadline = min(time.monotonic() + wall_s + OVERDUE_S, worker.until)
        self.received = 0
        self.overflow = False
        self.status: dict[str, Any] | None = None
        here, there = socket.socketpair()
        self.connection = here
        here.setblocking(False)
        self.stdout, output = os.pipe() if request["mode"] == "script" else (-1, -1)
        opened = [there.fileno()]
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            opened_here = [nowhere]
            source = nowhere
            if stdin is not None:
                source = _file_of(stdin)
                opened_here.append(source)
            descriptors = [source, output if output >= 0 else nowhere, *opened]
            limited = {k: v for k, v in asdict(limits).items() if k in ("cpu_s", "memory_bytes", "file_bytes")}
            message = {"op": "run", "id": self.number, "wall_s": wall_s, "limits": limited}
            worker.send({**message, "folders": request.get("folders", {})}, descriptors)
        finally:
            there.close()
            for descriptor in [*opened_here, output]:
                if descriptor >= 0:
                    os.close(descriptor)
        self._send(request)

    def ask(self, message: Any | None) -> dict[str, Any]:
        """Send a message (or none) and wait for the next reply.

        Returns:
            the reply; `{"gone": why}` where there is none: timed_out, overflow, garbage or ended.
        """
        if message is not None and not self._send(message):
            return {"gone": self.why()}
        body = self._receive()
        if body is None:
            return {"gone": self.why()}
        try:
            reply = json.loads(body)
        except (ValueError, RecursionError):
            return {"gone": "garbage"}
        usable = isinstance(reply, dict) and "gone" not in reply and wire.nested_at_most(reply, REPLY_DEPTH)
        return reply if usable else {"gone": "garbage"}

    def _send(self, message: Any) -> bool:
        data = memoryview(wire.frame(message, REQUEST_BYTES))
        while data:
            try:
                data = data[self.connection.send(data) :]
            except BlockingIOError:
                if not self._wait(self.connection, select.POLLOUT):
                    return False
            except OSError:
                return False
        return True

    def _receive(self) -> bytes | None:
        head = self._exactly(wire.HEADER.size)
        if head is None:
            return None
        (size,) = wire.HEADER.unpack(head)
        self.received += size
        if size > wire.FRAME_BYTES or self.received > 8 * wire.FRAME_BYTES:
            self.overflow = True
            return None
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes | None:
        chunks: list[bytes] = []
        while size:
            try:
                chunk = self.connection.recv(min(size, 1 << 16))
            except BlockingIOError:
                if not self._wait(self.connection, select.POLLIN):
                    return None
                continue
            except OSError:
                return None
            if not chunk:
                return None
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def left_s(self) -> float:
        """Seconds until its deadline."""
        return max(0.0, self.deadline - time.monotonic())

    def _wait(self, what: Any, event: int) -> bool:
        poll = select.poll()
        poll.register(what, event)
        left = self.left_s()
        return left > 0 and bool(poll.poll(left * 1000))

    def output(self) -> bytes:
        """What a script printed, read while it runs; at most `output_bytes`."""
        chunks: list[bytes] = []
        size = 0
        while self._wait(self.stdout, select.POLLIN):
            chunk = os.read(self.stdout, 1 << 16)
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
            if size > self.limits.output_bytes:
                self.overflow = True
                break
        return b"".join(chunks)[: self.limits.output_bytes]

    def finish(self, patience_s: float) -> dict[str, Any]:
        """How the program ended; it is killed where it has not by then.

        Raises:
            Broken: it cannot be killed, or never began.
        """
        if self.status is None:
            status = None if patience_s <= 0 else self.worker.outcome(self.number, patience_s)
            if status is None:
                self.worker.send({"op": "kill", "id": self.number})
                status = self.worker.outcome(self.number, OVERDUE_S)
                if status is None:
                    raise Broken("a program does not end")
                status = {**status, "killed": True}
            if status["broken"]:
                raise Broken(f"a program's process could not be made: {status['broken']}")
            self.status = status
        return self.status

    def why(self) -> str:
        """Why a reply did not come: overflow, timed_out, or ended."""
        if self.overflow:
            return "overflow"
        if time.monotonic() >= self.deadline:
            return "timed_out"
        status = self.finish(LINGER_S)
        hung_up = status.get("killed", False)  # it closed its socket and lived on
        return "timed_out" if ended_late(status) and not hung_up else "ended"

    def close(self) -> None:
        """Kill it if it lives, and let go of everything of it."""
        self.connection.close()
        try:
            self.finish(0)
        finally:
            if self.stdout >= 0:
                os.close(self.stdout)
                self.stdout = -1


def ended_late(status: dict[str, Any]) -> bool:
    """Whether a program was ended for its time: by its sandbox, by the kernel, or from here."""
    return bool(status["late"]) or status["status"] in CPU_SIGNALS


def _file_of(data: bytes) -> int:
    """A descriptor that reads these bytes, and that nobody can write to."""
    handle = os.memfd_create("stdin", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(handle)
