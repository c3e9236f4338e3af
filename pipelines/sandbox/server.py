"""`python -m pipelines.sandbox.server`: lends this machine's sandbox to trainers elsewhere, over HTTP.

    POST /execute          a program that answers once, or a script         → its reply, or what it printed and how it ended
    POST /create_session   a program that is called many times              → a session, and the first reply
    POST /run_in_session   the next message to it                           → its reply
    POST /close_session                                                     → nothing
    GET  /is_alive                                                          → level, runtime, sandboxes, why there is no shell

A program is confined here exactly as one of this machine's own (`worker.py`), which needs namespaces or landlock; there is no way
to ask for less. Every request needs the key, as a bearer token.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hmac
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pipelines.base.errors import USER_ERROR_EXIT, UserError
from pipelines.sandbox import SandboxError, isolation, levels, shell
from pipelines.sandbox.inside.confine import SCRATCH, WORK
from pipelines.sandbox.remote import BUSY, QUEUE_S
from pipelines.sandbox.worker import Broken, Limits, Program, Worker

KEY_VARIABLE = "WHETSTONE_SANDBOX_KEY"
PORT = 8700
IDLE_S = 60.0
"""What the owner of a session may take between its messages, all together: a slow network is no fault of the program."""
REQUEST_BYTES = 64 << 20
HANG_UP_S = 60.0
"""A connection that is silent for so long is closed."""
CONNECTIONS = 256
MODES = ("script", "shell", "sql", "functions", "tests")
MOST = Limits(cpu_s=60, wall_factor=10.0, memory_bytes=4 << 30, file_bytes=16 << 20, output_bytes=8 << 20)
"""What one program may be given."""
INTEGERS = ("cpu_s", "memory_bytes", "file_bytes", "output_bytes")


class Refused(Exception):
    """A request that is not answered with a result: a status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass
class Lease:
    """A sandbox process that a client has, for one program or for two side by side."""

    worker: Worker
    programs: int = 1
    broken: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)


@dataclass
class Session:
    """A program that is called many times."""

    lease: Lease
    program: Program
    opened: contextlib.ExitStack
    wall_s: float
    began: float
    ran_s: float = 0.0

    def idle_s(self) -> float:
        """Seconds in which nobody waited for it."""
        return time.monotonic() - self.began - self.ran_s

    def ask(self, message: Any) -> dict[str, Any]:
        """Its next reply; only the time until then counts."""
        asked = time.monotonic()
        self.program.deadline = asked + max(0.0, self.wall_s - self.ran_s)
        reply = self.program.ask(message)
        self.ran_s += time.monotonic() - asked
        return {"reply": reply, "ran_s": time.monotonic() - asked}


class Host:
    """The sandbox processes of this machine, and who has them.

    Args:
        workers: how many at most.
        level: what confines them.
    """

    def __init__(self, workers: int, level: levels.Level) -> None:
        self.workers, self.level = workers, level
        self.free = threading.BoundedSemaphore(workers)
        self.idle: list[Worker] = []
        self.sessions: dict[str, Session] = {}
        self.lock = threading.Lock()
        self.starter = ThreadPoolExecutor(1)  # a sandbox process ends with the thread that has started it
        threading.Thread(target=self._watch, daemon=True, name="sessions").start()

    def is_alive(self) -> dict[str, Any]:
        """What clients need to know of this machine."""
        return {
            "is_alive": True, "level": self.level, "workers": self.workers, "shell": shell.trouble_here(), "runtime": levels.runtime(),
        }  # fmt: skip

    def execute(self, body: dict[str, Any]) -> dict[str, Any]:
        """Run a program that answers once, or a script."""
        request, limits, stdin = _program(body)
        lease = self._take()
        began = time.monotonic()
        with self._held(lease), lease.worker.run(request, limits, stdin) as program:
            if request["mode"] != "script":
                return {"reply": program.ask(body.get("message")), "ran_s": time.monotonic() - began}
            printed = program.output()
            status = {"late": False, "status": 0} if program.overflow else program.finish(program.left_s())
            return {
                "output": base64.b64encode(printed).decode(), "overflow": program.overflow, "late": status["late"],
                "status": status["status"], "ran_s": time.monotonic() - began,
            }  # fmt: skip

    def create_session(self, body: dict[str, Any]) -> dict[str, Any]:
        """Start a program that is called many times; `beside` names a session whose sandbox it shares."""
        request, limits, stdin = _program(body)
        beside = body.get("beside")
        lease = self._take() if beside is None else self._join(self._session({"session": beside}).lease)
        opened = contextlib.ExitStack()
        opened.enter_context(self._held(lease))
        try:
            with lease.lock:
                wall_s, began = limits.wall_s, time.monotonic()
                patient = Limits(**{**vars(limits), "wall_factor": (wall_s + IDLE_S) / limits.cpu_s})
                program = opened.enter_context(lease.worker.run(request, patient, stdin))
                session = Session(lease, program, opened, wall_s, began)
                reply = session.ask(body.get("message"))
        except BaseException:
            lease.broken = True
            _closed(lease, opened)
            raise
        name = secrets.token_hex(16)
        with self.lock:
            self.sessions[name] = session
        return {"session": name, **reply}

    def run_in_session(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send the program of a session a message, and wait for its reply."""
        session = self._session(body)
        with session.lease.lock:
            if session.idle_s() > IDLE_S:
                raise Refused(410, "the session was idle for too long")
            try:
                return session.ask(body.get("message"))
            except Broken:
                session.lease.broken = True
                raise

    def close_session(self, body: dict[str, Any]) -> dict[str, Any]:
        """End the program of a session."""
        with self.lock:
            session = self.sessions.pop(str(body.get("session")), None)
        if session is not None:
            _closed(session.lease, session.opened)
        return {}

    def _session(self, body: dict[str, Any]) -> Session:
        with self.lock:
            session = self.sessions.get(str(body.get("session")))
        if session is None:
            raise Refused(404, "no such session")
        return session

    def _take(self) -> Lease:
        if not self.free.acquire(timeout=QUEUE_S):
            raise Refused(BUSY, f"all {self.workers} sandboxes are busy")
        try:
            with self.lock:
                worker = self.idle.pop() if self.idle else None
            return Lease(worker or self.starter.submit(Worker, self.level).result())
        except BaseException:
            self.free.release()
            raise

    def _join(self, lease: Lease) -> Lease:
        with self.lock:
            if lease.programs != 1:
                raise Refused(409, "a sandbox runs two programs side by side")
            lease.programs = 2
        return lease

    @contextlib.contextmanager
    def _held(self, lease: Lease) -> Iterator[None]:
        """Until a program has ended; with the last one the sandbox goes back, or ends where it is broken."""
        try:
            yield
        except BaseException:
            lease.broken = True
            raise
        finally:
            with self.lock:
                lease.programs -= 1
                last = lease.programs == 0
                if last and not lease.broken:
                    self.idle.append(lease.worker)
            if last:
                if lease.broken:
                    lease.worker.close()
                self.free.release()

    def _watch(self) -> None:
        """End the sessions that their clients have left."""
        while True:
            time.sleep(1.0)
            with self.lock:
                left = [name for name, each in self.sessions.items() if each.idle_s() > each.wall_s + IDLE_S]
            for name in left:
                self.close_session({"session": name})


def _closed(lease: Lease, opened: contextlib.ExitStack) -> None:
    with lease.lock, contextlib.suppress(Broken):
        opened.close()


def _program(body: dict[str, Any]) -> tuple[dict[str, Any], Limits, bytes | None]:
    """The program of a request, and what it may use.

    Raises:
        Refused: it is none, or asks for more than one may be given.
    """
    try:
        request, limits = body["request"], Limits(**body["limits"])
        asked, most = vars(limits) | {"wall_s": limits.wall_s}, vars(MOST) | {"wall_s": MOST.wall_s}
        del asked["wall_factor"]
        if request["mode"] == "shell":  # of all processes together, as the limit is of each
            asked["memory_bytes"] = max(limits.memory_bytes, request["memory_bytes"])
        much = [
            f"{name} {value:g} (at most {most[name]:g})"
            for name, value in asked.items()
            if not 0 <= value <= most[name]
        ]
        folders = request.get("folders", {})
        if request["mode"] not in MODES or folders.keys() - {WORK, SCRATCH}:
            raise Refused(400, "no such program")
        much += [f"a folder of {size} bytes" for size in folders.values() if not 0 <= size <= MOST.file_bytes]
        stdin = None if body.get("stdin") is None else base64.b64decode(body["stdin"], validate=True)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused(400, f"no program ({type(error).__name__}: {str(error)[:100]})") from None
    if much:
        raise Refused(400, f"a program may not have {', '.join(much)}")
    if limits.cpu_s < 1 or any(type(getattr(limits, name)) is not int for name in INTEGERS):
        raise Refused(400, "a program has whole seconds of processor time and whole bytes")
    return request, limits, stdin


class Handler(BaseHTTPRequestHandler):
    """A connection of a client."""

    protocol_version = "HTTP/1.1"
    timeout = HANG_UP_S
    wbufsize = -1  # head and body of an answer leave together, and nothing waits for an acknowledgement between them
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        """Say what this machine is."""
        self._answer({"/is_alive": lambda body: self.server.host.is_alive()})

    def do_POST(self) -> None:
        """Run programs."""
        host = self.server.host
        own = (host.execute, host.create_session, host.run_in_session, host.close_session)
        self._answer({f"/{each.__name__}": each for each in own})

    def _answer(self, known: dict[str, Any]) -> None:
        try:
            sent = self._body(known)
            status, body = 200, known[self.path](sent)
        except Refused as error:
            status, body = error.status, {"error": str(error)}
        except (Broken, SandboxError) as error:
            status, body = 500, {"error": str(error)}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _body(self, known: dict[str, Any]) -> dict[str, Any]:
        """What was sent; without the key nothing is read."""
        kept, self.close_connection = self.close_connection, True
        sent = self.headers.get("Authorization", "").encode(errors="replace")
        if not hmac.compare_digest(sent, f"Bearer {self.server.key}".encode()):
            raise Refused(401, "the key is not the server's")
        if self.path not in known:
            raise Refused(404, "no such request")
        size = self.headers.get("Content-Length", "0")
        if not size.isdecimal() or int(size) > REQUEST_BYTES:
            raise Refused(413, f"a request has at most {REQUEST_BYTES} bytes")
        try:
            body = json.loads(self.rfile.read(int(size)) or b"{}")
        except (ValueError, RecursionError):
            raise Refused(400, "no JSON") from None
        if not isinstance(body, dict):
            raise Refused(400, "no JSON object")
        self.close_connection = kept
        return body

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: programs are not for a log."""


class Server(ThreadingHTTPServer):
    """The listener; a thread for each connection, of which there are at most `CONNECTIONS`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], host: Host, key: str) -> None:
        super().__init__(address, Handler)
        self.host, self.key = host, key
        self.connections = threading.BoundedSemaphore(CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, or hang up where there are too many."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that break are their clients' affair; anything else is a bug."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.sandbox.server", description="Lend this machine's sandbox."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; default: this machine alone")
    parser.add_argument("--port", type=int, default=PORT, help=f"default: {PORT}; 0: a free one")
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="sandboxes; default: one per processor"
    )
    parser.add_argument(
        "--api-key-env",
        default=KEY_VARIABLE,
        metavar="NAME",
        help=f"variable with the key of clients; default: {KEY_VARIABLE}",
    )
    arguments = parser.parse_args(argv)
    key = os.environ.get(arguments.api_key_env, "")
    try:
        if not key:
            raise UserError(
                "--api-key-env",
                f"the environment has no {arguments.api_key_env}",
                f"export {arguments.api_key_env}=...",
            )
        if arguments.workers < 1:
            raise UserError("--workers", f"{arguments.workers} is below 1")
        level = isolation.best()
        server = Server((arguments.host, arguments.port), Host(arguments.workers, level), key)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return USER_ERROR_EXIT
    host, port = server.server_address[:2]
    print(f"sandbox {level}, {arguments.workers} at a time, listening on http://{host!s}:{port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
