"""A judge behind a real HTTP server: it reads the question as a model would and answers by a rule of the test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from servers import serving

FENCED = re.compile(
    r"^(=== \w+) conversation\n(.*?)\n(?:\1 reference answer[^\n]*\n(.*?)\n)?\1 answer\n(.*?)\n\1 end$", re.DOTALL
)


PAIR = re.compile(
    r"^(=== \w+) conversation\n(.*?)\n\1 first answer\n(.*?)\n\1 second answer\n(.*?)\n\1 end$", re.DOTALL
)


def pair(body: dict[str, Any]) -> tuple[str, str]:
    """The two answers of a comparison, in the order in which they are shown."""
    match = PAIR.fullmatch(body["messages"][1]["content"])
    assert match is not None, body
    return match[3], match[4]


def parts(body: dict[str, Any]) -> tuple[str, str, str | None, str]:
    """(what is asked, conversation, reference or None, answer) of a request."""
    system, user = (message["content"] for message in body["messages"])
    match = FENCED.fullmatch(user)
    assert match is not None, user
    return system, match[2], match[3], match[4]


class Judge:
    """A running server.

    Args:
        rule: request body → text of the reply, or (status, text) or (status, text, headers) for a failure, or a section with
            `message` (or `content`), `finish_reason` and `usage`, each where it is to be there.
    """

    def __init__(self, rule: Callable[[dict[str, Any]], Any]) -> None:
        self.rule, self.bodies, self.headers = rule, [], []
        judge = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send(200, {"data": [{"id": "rule"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                judge.bodies.append(body)
                judge.headers.append(dict(self.headers))
                reply = judge.rule(body)
                if isinstance(reply, tuple):
                    return self.send(reply[0], {"error": reply[1]}, *reply[2:])
                if not isinstance(reply, dict):
                    reply = {"content": reply, "usage": {"total_tokens": 7}}
                message = {"role": "assistant", **reply.get("message", {"content": reply.get("content")})}
                choice = {"index": 0, "message": message}
                if "finish_reason" in reply:
                    choice["finish_reason"] = reply["finish_reason"]
                told = {"usage": reply["usage"]} if "usage" in reply else {}
                return self.send(200, {"object": "chat.completion", "choices": [choice], **told})

            def send(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


def running(rule: Callable[[dict[str, Any]], Any]) -> AbstractContextManager[Judge]:
    """A judge for the length of a block."""
    return serving(Judge(rule))
