"""The sandbox of another machine, over HTTP: `server.py` runs the programs there, and what comes of them is judged here.

The requests are named as in SWE-ReX's runtime: `execute` runs a program that answers once, `create_session`, `run_in_session` and
`close_session` talk with one that is called many times. A shell's folder travels with each command, so the server holds no state
between two, and a copy of a state needs nothing of it. A server that is gone, busy or silent breaks the sandbox (`Broken`); it never
makes a verdict.
"""

from __future__ import annotations

import base64
import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import httpx

from pipelines.base import secrets
from pipelines.base.project import page
from pipelines.sandbox import SandboxError, levels
from pipelines.sandbox.worker import OVERDUE_S, Broken, Limits

PATIENCE = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt, while the server does not answer or has no sandbox free."""
QUEUE_S = 5.0
"""How long the server lets a program wait for a sandbox before it says that it is busy."""
BUSY = 503
DIALOGS = ("functions", "tests")
"""Modes of programs that answer more than once."""


@dataclass(frozen=True)
class Remote:
    """A server, as a recipe's `sandbox` names it."""

    url: str
    api_key_env: str | None = None
    timeout_s: float = 30.0
    """Of an answer, beyond what its program may take."""
    patience: tuple[float, ...] = PATIENCE

    def about(self) -> dict[str, Any]:
        """What the server says of itself: its level, how many sandboxes it has, and why it has no shell.

        Raises:
            SandboxError: it does not answer, refuses the key, or would run programs otherwise than this machine does.
        """
        with RemoteSandbox(self) as sandbox:
            try:
                about = sandbox.ask("GET", "/is_alive", None, self.timeout_s, self.patience)
            except _Refused as error:
                if error.status in (401, 403):
                    raise SandboxError(
                        "sandbox.api_key_env",
                        f"{self.url} refuses the key ({error.status})",
                        "Name the variable with a valid key.",
                    ) from None
                raise SandboxError("sandbox.url", f"{self.url} is no server of sandboxes ({error})") from None
            except Broken as error:
                raise SandboxError(
                    "sandbox.url", str(error), f"Start it there ({page('operations')}, The sandbox)."
                ) from None
        there, here = about.get("runtime"), levels.runtime()
        if there != here:
            raise SandboxError(
                "sandbox.url", f"{self.url} runs programs as {there}, this machine as {here}: verdicts could differ",
                "Start it from the same version of the project, with the same version of Python.",
            )  # fmt: skip
        return about


class _Refused(Broken):
    """The server does not want the request: a status of 4xx."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"the sandbox's server refuses: status {status}: {text}")
        self.status = status


class RemoteSandbox:
    """A connection to a server, for one thread, with the interface of `worker.Worker`."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.until = math.inf
        self.sessions: list[str] = []
        """Those that are open."""
        headers = secrets.authorization(remote.api_key_env, "sandbox", SandboxError)
        self.client = httpx.Client(base_url=remote.url.rstrip("/"), headers=headers)

    def __enter__(self) -> RemoteSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def left_s(self) -> float:
        """Seconds until `until`."""
        return max(0.0, self.until - time.monotonic())

    @contextlib.contextmanager
    def run(
        self, request: dict[str, Any], limits: Limits | None = None, stdin: bytes | None = None
    ) -> Iterator[RemoteProgram]:
        """A program, from its first line to its end; it begins with the first question to it.

        Raises:
            Broken: the server is gone, busy for too long, or failed.
        """
        program = RemoteProgram(self, request, limits or Limits(), stdin)
        try:
            yield program
        finally:
            program.close()

    def post(self, path: str, body: dict[str, Any], wall_s: float, *, again: bool = True) -> dict[str, Any]:
        """What comes of a request. The way there and the wait for a free sandbox are no time of the job in hand.

        Args:
            wall_s: seconds that the program may take.
            again: whether the request may be made again where no answer came.
        """
        began = time.monotonic()
        timeout_s = QUEUE_S + wall_s + OVERDUE_S + self.remote.timeout_s
        answer = self.ask("POST", path, body, timeout_s, self.remote.patience if again else ())
        self.until += max(0.0, time.monotonic() - began - _number(answer, "ran_s"))
        return answer

    def ask(
        self, method: str, path: str, body: Any, timeout_s: float, patience: Sequence[float] = ()
    ) -> dict[str, Any]:
        """The answer to a request, which is made again after each of the waits while there is none.

        Raises:
            Broken: there is none, or it is no JSON object.
        """
        why = ""
        for wait in (*patience, None):
            try:
                answer = self.client.request(method, path, json=body, timeout=timeout_s)
            except httpx.TimeoutException as error:
                raise Broken(f"{self.remote.url} is silent ({type(error).__name__})") from None
            except httpx.TransportError as error:
                why = f"{self.remote.url} does not answer ({str(error) or type(error).__name__})"
            else:
                if answer.is_success:
                    return _object(answer)
                if answer.status_code < 500:
                    raise _Refused(answer.status_code, answer.text[:300])
                why = f"{self.remote.url} answers {answer.status_code}: {answer.text[:300]}"
                if answer.status_code not in (BUSY, 502, 504):
                    break
            if wait is not None:
                time.sleep(wait)
        raise Broken(why)

    def close(self) -> None:
        """Hang up."""
        self.client.close()


class RemoteProgram:
    """A program on the server, with the interface of `worker.Program`."""

    def __init__(self, sandbox: RemoteSandbox, request: dict[str, Any], limits: Limits, stdin: bytes | None) -> None:
        self.sandbox, self.wall_s = sandbox, min(limits.wall_s, sandbox.left_s)
        limits = replace(limits, wall_factor=self.wall_s / limits.cpu_s)
        text = None if stdin is None else base64.b64encode(stdin).decode()
        self.body: dict[str, Any] = {"request": request, "limits": asdict(limits), "stdin": text}
        self.session: str | None = None
        self.status: dict[str, Any] = {}
        self.overflow = False

    def ask(self, message: Any | None) -> dict[str, Any]:
        """Send a message (or none) and wait for the next reply; `{"gone": why}` where there is none."""
        if self.session is not None:
            body = {"session": self.session, "message": message}
            answer = self.sandbox.post("/run_in_session", body, self.wall_s, again=False)  # it would be asked twice
        elif self.body["request"]["mode"] in DIALOGS:
            beside = self.sandbox.sessions[-1] if self.sandbox.sessions else None
            body = self.body | {"message": message, "beside": beside}
            answer = self.sandbox.post("/create_session", body, self.wall_s)
            self.session = str(answer.get("session"))
            self.sandbox.sessions.append(self.session)
        else:
            answer = self.sandbox.post("/execute", self.body | {"message": message}, self.wall_s)
        reply = answer.get("reply")
        if not isinstance(reply, dict):
            raise Broken(f"{self.sandbox.remote.url} answers without a reply")
        return reply

    def output(self) -> bytes:
        """What a script printed; afterwards `overflow` and `finish` say how it ended."""
        answer = self.sandbox.post("/execute", self.body, self.wall_s)
        try:
            printed, self.overflow = base64.b64decode(answer["output"], validate=True), bool(answer["overflow"])
            self.status = {"late": bool(answer["late"]), "status": int(answer["status"])}
        except (KeyError, ValueError, TypeError) as error:
            raise Broken(f"{self.sandbox.remote.url} answers without an output ({error})") from None
        return printed

    def finish(self, patience_s: float) -> dict[str, Any]:
        """How the script ended that `output` has read."""
        return self.status

    def left_s(self) -> float:
        """Seconds that the program may take; the server keeps the clock."""
        return self.wall_s

    def close(self) -> None:
        """End the session; the server ends by itself what it is not told of."""
        if self.session is not None:
            self.sandbox.sessions.remove(self.session)
            with contextlib.suppress(Broken):
                self.sandbox.ask("POST", "/close_session", {"session": self.session}, self.sandbox.remote.timeout_s)


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Broken(f"{answer.url} answers no JSON object")
    return body


def _number(reply: dict[str, Any], name: str) -> float:
    value = reply.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
