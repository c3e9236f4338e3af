"""An endpoint on the loopback interface whose replies are a policy's turns: one path for each episode's program.

A request waits until the episode's next message is drawn; of several side by side one after the other does. Retries get what the first
attempt gets.
"""

from __future__ import annotations

import json
import secrets
import select
import socket
import threading
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from pipelines.environments._dialects import DIALECTS, Dialect
from pipelines.environments._requests import Refused, Request

MOST_BYTES = 2**24
"""Of a request."""
RETRIES = "x-stainless-retry-count"
"""Header in which OpenAI's and Anthropic's clients count their attempts."""
HERE = f"only /v1/models and {', '.join(f'/v1/{path}' for path in DIALECTS)} are here"


class Asked:
    """A request that waits for its reply."""

    def __init__(self, request: Request, connected: Callable[[], bool]) -> None:
        self.request, self.connected = request, connected
        self.answered = threading.Event()
        self.delivered: bool | None = None
        """Whether the reply could be sent; None before."""
        self.reply: dict[str, Any] | None = None
        """None where the episode ended first."""


class Session:
    """The requests of one episode. The program's ask, the environment answers.

    Attributes:
        arrived: the requests, in order, and whatever else the environment waits for.
    """

    def __init__(self) -> None:
        self.key = secrets.token_hex(8)
        self.arrived: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: list[Asked] = []
        self._answered: dict[str, Asked] = {}
        """By what was asked, the last one."""
        self.earlier: dict[str, list[dict[str, Any]]] = {}
        """Id of a reply → the conversation up to it, for requests that refer to it."""
        self._closed = False

    def ask(self, request: Request, retry: bool, connected: Callable[[], bool]) -> Asked:
        """The request as one to wait for, perhaps that of an earlier attempt.

        Args:
            retry: the client says that it has asked before.
            connected: whether the client still waits.
        """
        with self._lock:
            for waiting in self._waiting:
                if waiting.request.asked == request.asked and (retry or not waiting.connected()):
                    waiting.connected = connected
                    return waiting
            last = self._answered.get(request.asked)
            if last is not None:
                lost = last.delivered is False or (last.delivered is None and not last.connected())
                if retry or lost:
                    return last
            asked = Asked(request, connected)
            if self._closed:
                asked.answered.set()
            else:
                self._waiting.append(asked)
                self.arrived.put(asked)
            return asked

    def answer(self, asked: Asked, reply: dict[str, Any]) -> None:
        """Give a request its reply."""
        with self._lock:
            if asked in self._waiting:
                self._waiting.remove(asked)
            self._answered[asked.request.asked] = asked
            asked.reply = reply
            asked.answered.set()

    def close(self) -> None:
        """No request gets a reply from now on."""
        with self._lock:
            self._closed = True
            for asked in self._waiting:
                asked.answered.set()
            self._waiting.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The list of models has one."""
        session, asks = self._asks()
        if session is None or asks != "models":
            self._refuse(404, HERE)
            return
        self._send(
            {"object": "list", "data": [{"id": "policy", "object": "model", "created": 0, "owned_by": "policy"}]}
        )

    def do_POST(self) -> None:
        """A message of the policy."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MOST_BYTES:
            self.close_connection = True
            self._refuse(413, f"a request has a Content-Length of at most {MOST_BYTES} bytes")
            return
        body = self.rfile.read(int(length))
        session, asks = self._asks()
        dialect = DIALECTS.get(asks)
        if session is None or dialect is None:
            self._refuse(404, HERE)
            return
        try:
            retry = self.headers.get(RETRIES, "0") != "0"
            request, messages = dialect.read(_json(body), session.earlier)
            asked = session.ask(request, retry, self._connected)
        except Refused as error:
            session.arrived.put(error)
            self._refuse(400, str(error), dialect)
            return
        asked.answered.wait()
        if asked.reply is None:
            self._refuse(410, "the episode is over", dialect)
        elif not self._connected():
            asked.delivered = False
        else:
            session.earlier[asked.reply["id"]] = [*messages, asked.reply["choices"][0]["message"]]
            try:
                self._reply(asked, dialect)
                asked.delivered = True
            except OSError:
                asked.delivered = False

    def _asks(self) -> tuple[Session | None, str]:
        """The episode, and what is asked of it: the path below /v1/."""
        server = self.server
        assert isinstance(server, Endpoint)
        key, _, rest = urlsplit(self.path).path.lstrip("/").partition("/v1/")
        return server.sessions.get(key), rest

    def _connected(self) -> bool:
        """Whether the client has not hung up."""
        try:
            poll = select.poll()
            poll.register(self.connection, select.POLLIN)
            return not poll.poll(0) or bool(self.connection.recv(1, socket.MSG_PEEK))
        except (OSError, ValueError):
            return False

    def _reply(self, asked: Asked, dialect: Dialect) -> None:
        assert asked.reply is not None
        completion = {**asked.reply, "model": asked.request.model}
        if asked.request.stream:
            self._send(dialect.events(completion, asked.request.with_usage), kind="text/event-stream")
        else:
            self._send(dialect.write(completion))

    def _refuse(self, status: int, message: str, dialect: Dialect = DIALECTS["chat/completions"]) -> None:
        self._send(dialect.refusal(message), status)

    def _send(self, body: dict[str, Any] | str, status: int = 200, kind: str = "application/json") -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Requests are in the episodes' rows; nothing is logged."""


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Refused("the request is no JSON") from None


class Endpoint(ThreadingHTTPServer):
    """The server of this process, for all of its episodes."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True, name="endpoint").start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no fault of ours."""

    def open(self) -> tuple[Session, str]:
        """A new session, and the address that its program asks."""
        session = Session()
        self.sessions[session.key] = session
        return session, f"http://127.0.0.1:{self.server_address[1]}/{session.key}/v1"

    def end(self, session: Session) -> None:
        """Nobody may ask there any more."""
        session.close()
        self.sessions.pop(session.key, None)


_starting = threading.Lock()


def endpoint() -> Endpoint:
    """This process's; the first call starts it."""
    with _starting:
        return _endpoint()


@cache
def _endpoint() -> Endpoint:
    return Endpoint()
