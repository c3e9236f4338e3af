"""Verifiers in processes that can be killed: a deadline per row, a budget per batch, one verdict per row whatever happens.

A server process without torch, threads or CUDA (`server.py`) forks workers (`worker.py`). This side keeps the clock: a
row that spends its processor time, or three times that on the wall, costs its worker, which is killed, reaped and
replaced; rows that the worker had not begun go back to the queue, and so do those whose verdicts it had not sent yet. A
first pass gives every row a short time, so that a few hundred slow rows cannot keep thousands of quick ones from their
verdicts.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import pickle
import select
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from pipelines.base import owner
from pipelines.base.project import THREADS, python
from pipelines.verifiers._wire import HEADER, PROGRESS
from pipelines.verifiers.verdict import NOT_BEGUN, TIMED_OUT, Verdict, failed

PATIENCE_S = 120.0
"""How long the server may take to import the verifiers and fork."""
SHORT_MESSAGE = 16
"""Rows of the last messages of a batch."""
LINE_BYTES = 1 << 20
"""A longer reply is no verdict."""
TICKS = os.sysconf("SC_CLK_TCK")
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH")
"""Environment variables that the verifiers see; secrets are not among them."""

DIED = failed("WorkerDied")


@dataclass(frozen=True)
class Limits:
    """What a row, a worker and a batch may use."""

    cpu_s: float = 2.0
    """Processor time of a row, in seconds; the median row of `math` takes 0.0004."""
    quick_s: float = 0.25
    """Processor time in the first pass; a row that needs more is asked again after all others."""
    wall_factor: float = 3.0
    """Wall time allowed, in processor times: others may use the processor."""
    memory_bytes: int = 2 << 30
    """Address space of a worker."""
    rows_per_message: int = 64
    """At most; the last rows of a batch go in messages of 16, so that no worker is left with many."""
    rows_per_worker: int = 5000
    """Rows after which a worker is replaced, so that caches of the libraries cannot grow for ever."""
    batch_s: float = 60.0
    """Wall time of a batch, whatever its size ..."""
    batch_row_s: float = 0.02
    """... plus this much per distinct row. Rows left over are timed out where they had `quick_s`, else unscored."""


class Request(NamedTuple):
    """One row: `kind` is verify or extract."""

    kind: str
    verifier: str
    completion: str
    answer: str
    info: dict[str, Any]


Result = Verdict | str
"""A verdict, or an extracted answer."""
Row = tuple[str, str, str, str, bytes]
"""A request with its info pickled: no worker hands what a verifier did to its info to the next row."""


class PoolError(RuntimeError):
    """The verifier processes cannot be started; not about any row."""


@dataclass(eq=False)
class _Worker:
    pid: int
    connection: socket.socket
    loaded: frozenset[str]
    progress: mmap.mmap
    """`PROGRESS`, which the worker writes; this side writes it while the worker waits for a message."""
    rows: deque[int] = field(default_factory=deque)
    """Rows in flight whose replies are not here yet."""
    answered: int = 0
    """Rows of the message whose replies are here."""
    outgoing: memoryview = field(default_factory=lambda: memoryview(b""))
    incoming: bytearray = field(default_factory=bytearray)
    cpu_at_reply: float = 0.0
    """Processor time used before the last reply, in seconds."""
    limit: float = 0.0
    check_at: float = 0.0

    @property
    def begun(self) -> int:
        """Rows of the message that it has begun."""
        return int(PROGRESS.unpack_from(self.progress)[0])

    @property
    def cpu_at(self) -> float:
        """Processor time used before the row in hand, in seconds."""
        return float(PROGRESS.unpack_from(self.progress)[1])

    @property
    def since(self) -> float:
        """When the row in hand began, by the monotonic clock."""
        return float(PROGRESS.unpack_from(self.progress)[2])

    def cpu(self) -> float:
        """Processor time used so far, in seconds; 10 ms grain."""
        fields = owner.stat(self.pid)
        return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0

    def take_in_hand(self) -> int:
        """Take the row in hand off `rows`: those before it have verdicts that were not sent, and are asked again."""
        place = max(0, self.begun - 1 - self.answered)
        row = self.rows[place]
        del self.rows[place]
        return row


class Pool:
    """Persistent workers; `run` may be called from any thread, one batch at a time.

    Args:
        workers: how many at most; default: one per processor this process may use, at most 8.
    """

    def __init__(self, workers: int | None = None, limits: Limits | None = None) -> None:
        self.size = workers or min(8, len(os.sched_getaffinity(0)))
        self.limits = limits or Limits()
        self.workers: list[_Worker] = []
        self.owner = os.getpid()
        self.load: frozenset[str] = frozenset()
        """Verifiers and tasks that workers have loaded from their start."""
        self.killed = 0
        """Workers killed for a row's time, since the pool began."""
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = threading.RLock()

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """One result per request, in order; equal requests are computed once.

        Raises:
            PoolError: the processes cannot be started.
        """
        if not requests:
            return []
        pickled: dict[tuple[str, int], bytes] = {}  # by identity: rows of a problem share their info
        distinct: dict[Row, int] = {}
        needed: set[str] = set()
        place: list[int | None] = []
        for request in requests:
            key = (request.verifier, id(request.info))
            if key not in pickled:
                pickled[key] = _pickled(request.info)
                needed.add(_needs(request))
            row = (*request[:4], pickled[key])
            place.append(distinct.setdefault(row, len(distinct)) if pickled[key] else None)
        with self._lock:
            self.load |= needed
            batch = _Batch(self, list(distinct))
            try:
                batch.run()
            finally:
                for worker in [w for w in self.workers if w.rows]:
                    self.end(worker)
        return [
            _result(request.kind, failed("Info")) if i is None else batch.results[i]
            for i, request in zip(place, requests, strict=True)
        ]

    def resize(self, workers: int) -> None:
        """Have at most `workers` workers from now on."""
        with self._lock:
            self.size = workers
            for worker in self.workers[workers:]:
                self.end(worker)

    def close(self) -> None:
        """End every process; the pool starts them again when it is used."""
        if os.getpid() != self.owner:
            return  # a fork of the owner has no say over its pool
        with self._lock:
            for worker in self.workers:
                worker.connection.close()
            self.workers = []
            if self._control is not None:
                self._control.close()
            if self._server is not None:
                try:
                    self._server.wait(5)
                except subprocess.TimeoutExpired:
                    self._server.kill()
                    self._server.wait()
            self._server = self._control = None

    @property
    def server_died(self) -> bool:
        """Whether the process that starts the workers has ended by itself, and they with it."""
        return self._server is not None and self._server.poll() is not None

    def add(self) -> _Worker:
        """A new worker that has the verifiers in `load` loaded."""
        load = self.load
        for attempt in (1, 2):
            parent_end, child_end = socket.socketpair()
            memory = os.memfd_create("progress")
            try:
                os.truncate(memory, PROGRESS.size)
                progress = mmap.mmap(memory, PROGRESS.size)
                request = {"op": "fork", "load": sorted(load), "limits": asdict(self.limits)}
                pid = self._ask(request, child_end.fileno(), memory)["pid"]
            except PoolError:
                parent_end.close()
                self._abandon()
                if attempt == 2:
                    raise
                continue
            finally:
                child_end.close()
                os.close(memory)
            parent_end.setblocking(False)
            worker = _Worker(pid, parent_end, load, progress)
            self.workers.append(worker)
            return worker
        raise AssertionError("unreachable")

    def end(self, worker: _Worker) -> int:
        """Kill and reap a worker.

        Returns:
            its wait status.
        """
        self.workers.remove(worker)
        worker.connection.close()
        try:  # the server kills its child: only there the process id cannot have become another's
            return int(self._ask({"op": "end", "pid": worker.pid})["status"])
        except PoolError:
            self._abandon()
            return 0

    def _ask(self, request: dict[str, Any], *descriptors: int) -> dict[str, Any]:
        control = self._start()
        try:
            socket.send_fds(control, [json.dumps(request).encode()], list(descriptors))
            ready, _, _ = select.select([control], [], [], PATIENCE_S)
            packet = control.recv(1 << 16) if ready else b""
        except OSError as error:
            raise PoolError(f"the verifier server is gone ({error})") from error
        except BaseException:  # an interrupt between question and answer would shift every later answer
            self._abandon()
            raise
        if not packet:
            raise PoolError("the verifier server did not answer; what it printed is in the stage's log")
        return json.loads(packet)

    def _start(self) -> socket.socket:
        if self._control is not None:
            return self._control
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {k: os.environ[k] for k in PASSED_ON if k in os.environ}
        pinned = dict.fromkeys(THREADS, "1")
        with child_end:
            self._server = subprocess.Popen(
                python("pipelines.verifiers.server", str(child_end.fileno()), str(os.getpid())),
                env={**environment, **pinned},
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._control = parent_end
        return parent_end

    def _abandon(self) -> None:
        """The server is lost: its workers die with it, and the next request starts another."""
        for worker in self.workers:
            worker.connection.close()
        self.workers = []
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        if self._control is not None:
            self._control.close()
        self._server = self._control = None


class _Batch:
    """The loop over one batch of distinct rows."""

    def __init__(self, pool: Pool, rows: list[Row]) -> None:
        self.pool, self.rows, self.limits = pool, rows, pool.limits
        self.results: list[Any] = [None] * len(rows)
        self.queue: deque[int] = deque(range(len(rows)))
        self.slow: set[int] = set()
        """Rows whose first, short time has run out."""
        self.forgiven: set[int] = set()
        """Rows that were in hand when the server died; it may have been one of them that cost it its memory."""
        self.handed: list[_Worker] = []
        """Workers that were given rows and have not been seen idle since."""
        self.lost_starts = 0

    def run(self) -> None:
        """Fill `results`."""
        self._man()  # before the clock starts: the first worker waits for the server's imports
        end = time.monotonic() + self.limits.batch_s + self.limits.batch_row_s * len(self.rows)
        while True:
            self._recover()
            self._man()
            for worker in self.pool.workers:
                if not worker.rows and self.queue:
                    self._hand(worker)
            busy = [w for w in self.pool.workers if w.rows]
            if not busy and not self.queue:
                return
            now = time.monotonic()
            if now >= end:
                self._give_up(busy)
                return
            self._wait(busy, min([end, *(w.check_at for w in busy)]) - now)
            self._deadlines()

    def _recover(self) -> None:
        """Put back the rows of workers that went with their server."""
        for worker in self.handed:
            if worker not in self.pool.workers:
                self.queue.extend(worker.rows)
                worker.rows.clear()
        self.handed = [w for w in self.handed if w.rows]

    def _man(self) -> None:
        """As many workers as the rows are worth, with the verifiers of this batch loaded."""
        for worker in [w for w in self.pool.workers if not w.rows and not self.pool.load <= w.loaded]:
            self.pool.end(worker)
        waiting = -(-len(self.queue) // self.limits.rows_per_message)
        busy = sum(1 for w in self.pool.workers if w.rows)
        while len(self.pool.workers) < min(self.pool.size, busy + waiting):
            self.pool.add()

    def _hand(self, worker: _Worker) -> None:
        slow = self.queue[0] in self.slow
        most = 1 if slow else self._rows_of_message()
        while self.queue and len(worker.rows) < most and (self.queue[0] in self.slow) == slow:
            worker.rows.append(self.queue.popleft())
        body = pickle.dumps([self.rows[i] for i in worker.rows])
        worker.outgoing = memoryview(HEADER.pack(len(body)) + body)
        worker.limit = self.limits.cpu_s if slow else min(self.limits.quick_s, self.limits.cpu_s)
        worker.answered, now = 0, time.monotonic()
        PROGRESS.pack_into(worker.progress, 0, 0, worker.cpu_at_reply, now)
        worker.check_at = now + worker.limit
        self.handed.append(worker)
        self._write(worker)

    def _rows_of_message(self) -> int:
        """Many while there are many: a message costs this side as much as several rows."""
        share = -(-len(self.queue) // self.pool.size)
        return min(share, max(SHORT_MESSAGE, min(self.limits.rows_per_message, share // 4)))

    def _wait(self, busy: list[_Worker], timeout: float) -> None:
        poll = select.poll()
        by_number = {w.connection.fileno(): w for w in busy}
        for number, worker in by_number.items():
            poll.register(number, select.POLLIN | (select.POLLOUT if worker.outgoing else 0))
        for number, event in poll.poll(max(0.0, timeout) * 1000 + 1):
            worker = by_number[number]
            if event & select.POLLOUT:
                self._write(worker)
            if event & ~select.POLLOUT:
                self._read(worker)

    def _write(self, worker: _Worker) -> None:
        try:
            worker.outgoing = worker.outgoing[worker.connection.send(worker.outgoing) :]
        except BlockingIOError:
            return
        except OSError:  # it died; reading finds out
            worker.outgoing = memoryview(b"")

    def _read(self, worker: _Worker) -> None:
        try:
            chunk = worker.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        worker.incoming += chunk
        while worker in self.pool.workers and (at := worker.incoming.find(b"\n")) >= 0:
            line = bytes(worker.incoming[:at])
            del worker.incoming[: at + 1]
            self._take(worker, json.loads(line))
        if worker in self.pool.workers and (not chunk or len(worker.incoming) > LINE_BYTES):
            self._died(worker)

    def _take(self, worker: _Worker, line: dict[str, Any]) -> None:
        if "bug" in line:
            raise PoolError(f"a verifier worker failed by itself:\n{line['bug']}")
        self.lost_starts = 0
        for reply in line["replies"]:
            self.results[worker.rows.popleft()] = reply if isinstance(reply, str) else Verdict(*reply)
        worker.answered += len(line["replies"])
        worker.cpu_at_reply = float(line["cpu"])
        worker.check_at = time.monotonic() + worker.limit
        if line["last"]:
            self._replace(worker)

    def _died(self, worker: _Worker) -> None:
        """Its row in hand is lost, unless it had not begun the message, or died with the server, which is forgiven a row once."""
        if worker.rows and worker.begun:
            row = worker.take_in_hand()
            if self.pool.server_died and row not in self.forgiven:
                self.forgiven.add(row)
                self.queue.append(row)
            else:
                self.results[row] = self._without_verdict(row, DIED)
            self.lost_starts = 0
        else:
            self.lost_starts += 1
            if self.lost_starts > 5:
                raise PoolError("verifier workers die before they begin; is there memory for a process of 300 MB?")
        self._replace(worker)

    def _deadlines(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self.pool.workers if w.rows and now >= w.check_at]:
            used, wall = worker.cpu() - worker.cpu_at, worker.since + worker.limit * self.limits.wall_factor
            if used < worker.limit and now < wall:
                worker.check_at = min(wall, now + max(0.01, worker.limit - used))
                continue
            row = worker.take_in_hand()
            if worker.limit < self.limits.cpu_s:
                self.slow.add(row)
                self.queue.append(row)
            else:
                self.results[row] = self._without_verdict(row, TIMED_OUT)
            self.pool.killed += 1
            self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        """Kill it and put the rows that it had not begun back, the order kept."""
        self.queue.extendleft(reversed(worker.rows))
        worker.rows.clear()
        self.pool.end(worker)

    def _give_up(self, busy: list[_Worker]) -> None:
        """The batch's time is over."""
        for worker in busy:
            worker.rows.clear()
            self.pool.end(worker)
        for i, result in enumerate(self.results):
            if result is None:
                self.results[i] = self._without_verdict(i, TIMED_OUT if i in self.slow else NOT_BEGUN)

    def _without_verdict(self, row: int, verdict: Verdict) -> Result:
        return _result(self.rows[row][0], verdict)


def _result(kind: str, verdict: Verdict) -> Result:
    """The result of a row without an answer: the verdict, or no text where one is to be extracted."""
    return verdict if kind == "verify" else ""


def _pickled(info: dict[str, Any]) -> bytes:
    """Pickled info; empty where it is nested too deeply."""
    try:
        return pickle.dumps(info)
    except RecursionError:
        return b""


def _needs(row: Request) -> str:
    """What the row wants loaded before the fork: the verifier, and the task that it caches."""
    task = row.info.get("task")
    return f"{row.verifier}/{task}" if isinstance(task, str) else row.verifier


_shared: Pool | None = None


def shared() -> Pool:
    """The process's own pool, started when it is first needed and ended with the process."""
    global _shared
    if _shared is None or _shared.owner != os.getpid():
        _shared = Pool()
        atexit.register(_shared.close)
    return _shared
