"""Environments behind an OpenEnv server, spoken to in its own protocol: one WebSocket session an episode.

The server is a process of its own, with Python packages of its own (`openenv` pins others than this project's); only its address
is needed here, and the library `websockets` (`pip install websockets`). A message is put into one field of the action, or
is the action itself as JSON, an MCP tool call for instance. Rewards are the server's, turn by turn.
"""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pipelines.base.distribution import install_hint
from pipelines.base.errors import RecipeError
from pipelines.data import marks
from pipelines.data.records import Message, Problem
from pipelines.environments import Step, Unavailable
from pipelines.environments._replayed import Replayed

OPEN_S, REPLY_S = 20.0, 110.0
"""How long a session may take to open and a reply to come; below what a step may take."""
LOCAL = ("localhost", "127.0.0.1", "::1")
Form = Literal["text", "json"]

PLAYED = True
OUTSIDE = True
EXTRA = "openenv"


class _Refused(Exception):
    """The server says that an action is none."""


class World(Replayed):
    """An episode from `seed` of the problem's info. It opens its session at its first step, and a copy plays the same messages again.

    Success: the rewards of a finished episode come to `success_at`.
    """

    waits = True

    def __init__(self) -> None:
        super().__init__()
        self.earned = 0.0
        self._session: _Session | None = None

    def reset(self, problem: Problem) -> list[Message]:
        """The problem's prompt; the server is asked at the first step."""
        self._leave()
        self.problem, self.messages, self.earned, self.done = problem, [], 0.0, False
        return list(problem.prompt)

    def state_key(self) -> str:
        """The episode's start and all messages."""
        assert self.problem is not None
        return json.dumps([self.problem.info, self.messages], sort_keys=True)

    def step(self, message: str) -> Step:
        """One action.

        Raises:
            Unavailable: the server is gone, late, or its environment failed.
            RecipeError: the episode starts otherwise than the problem's prompt says.
        """
        if self.done:
            return self.over()
        session = self._session or self._opened()
        self.messages.append(message)
        return self._play(session, message)

    def _play(self, session: _Session, message: str) -> Step:
        assert self.problem is not None
        info = self.problem.info
        try:
            reply = session.ask("step", _action(message, info))
        except _Refused as error:
            return Step(f"error: {error}", 0.0, False, self.state_key(), {"success": False, "invalid": True})
        reward = _reward(reply)
        self.earned += reward
        self.done = bool(reply.get("done"))
        if not self.done:
            return Step(_shown(reply, info["show"]), reward, False, self.state_key(), {"success": False})
        self._leave()
        return Step("", reward, True, self.state_key(), {"success": self.earned >= info["success_at"]})

    def _opened(self) -> _Session:
        """A session at the present state of the episode."""
        assert self.problem is not None
        info = self.problem.info
        self._session = session = _Session(info["url"])
        weakref.finalize(self, session.close)
        start = _shown(session.ask("reset", {**info["reset"], "seed": info["seed"]}), info["show"])
        if marks.unnamed(start) != info["start"]:  # the row was read from us (`environments.read_from`)
            raise RecipeError(
                f"environment openenv: {info['url']} starts an episode with {start[:80]!r}, the data with {info['start'][:80]!r}",
                fix="Use the server that the data were made with; its episodes must depend on seed and `reset` alone.",
            )
        self.earned = 0.0
        for message in self.messages:
            self._play(session, message)
        return session

    def _leave(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def state_dict(self) -> dict[str, Any]:
        """The episode's start and messages."""
        assert self.problem is not None
        return {**super().state_dict(), "prompt": list(self.problem.prompt), "earned": self.earned, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off; the messages are played again at the next step."""
        self.reset(_problem(state["prompt"], state["info"]))
        self.messages, self.earned, self.done = list(state["messages"]), state["earned"], state["done"]


class _Session:
    """An environment of the server's that is ours until we leave.

    Raises:
        Unavailable: nobody answers at the address.
    """

    def __init__(self, url: str) -> None:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        address = "ws" + url.removeprefix("http").rstrip("/") + "/ws"
        proxy: Literal[True] | None = None if urlsplit(url).hostname in LOCAL else True
        try:
            self._socket = connect(address, open_timeout=OPEN_S, close_timeout=1.0, proxy=proxy, max_size=2**24)
        except (OSError, WebSocketException) as error:
            raise Unavailable(f"{url}: {type(error).__name__}: {error}") from error

    def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """The observation that a message brings.

        Raises:
            _Refused: the data are no action.
            Unavailable: no answer, or the environment failed.
        """
        from websockets.exceptions import WebSocketException

        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            reply = json.loads(self._socket.recv(timeout=REPLY_S))
        except (OSError, WebSocketException, ValueError) as error:  # TimeoutError is an OSError
            raise Unavailable(f"{type(error).__name__}: {error}") from error
        body = reply.get("data") if isinstance(reply, dict) else None
        if not isinstance(body, dict):
            raise Unavailable("a reply that is no message of OpenEnv")
        if reply.get("type") == "observation":
            return body
        if body.get("code") == "VALIDATION_ERROR" and kind == "step":
            raise _Refused("; ".join(_complaints(body)) or "no action")
        raise Unavailable(f"{body.get('code')}: {str(body.get('message'))[:200]}")

    def close(self) -> None:
        """Leave; the server ends the environment."""
        self._socket.close()


def _complaints(body: dict[str, Any]) -> Iterator[str]:
    """What an action lacks, in the server's words."""
    for error in body.get("errors") or []:
        yield f"{'.'.join(map(str, error.get('loc', [])))}: {error.get('msg', '')}"[:200]


def hidden(info: Mapping[str, Any]) -> list[Any]:
    """The server, and what it starts an episode from."""
    return [info.get("url"), info.get("reset"), info.get("seed")]


def _action(message: str, info: dict[str, Any]) -> dict[str, Any]:
    """The action of a message.

    Raises:
        _Refused: it should be JSON and is none.
    """
    if info["form"] == "text":
        return {**info["fixed"], info["field"]: message}
    try:
        action = json.loads(message)
    except (ValueError, RecursionError):
        action = None
    if not isinstance(action, dict):
        raise _Refused("an action is a JSON object")
    return {**info["fixed"], **action}


def _reward(reply: dict[str, Any]) -> float:
    """Of a reply; 0 where it has none.

    Raises:
        Unavailable: it is no number.
    """
    value = reply.get("reward")
    if value is None:
        return 0.0
    if not isinstance(value, bool | int | float) or not math.isfinite(value):
        raise Unavailable(f"a reward that is no number: {value!r}")
    return float(value)


def _shown(reply: dict[str, Any], show: list[str]) -> str:
    """The text of an observation: the fields of `show`, one a line; without them all that says something, as JSON."""
    observation = reply.get("observation")
    fields = observation if isinstance(observation, dict) else {"observation": observation}
    chosen = (
        {name: fields.get(name) for name in show} if show else {k: v for k, v in fields.items() if v not in ({}, None)}
    )
    if not show:
        return json.dumps(chosen, sort_keys=True)
    return "\n".join(v if isinstance(v, str) else json.dumps(v, sort_keys=True) for v in chosen.values())


def _problem(prompt: list[Message], info: dict[str, Any]) -> Problem:
    return Problem(uid="", prompt=prompt, answer="win", verifier="exact", source="", licence="", info=info)


def problems(
    size: int,
    seed: int,
    *,
    url: str,
    field: str = "message",
    form: Form = "text",
    fixed: dict[str, Any] | None = None,
    show: list[str] | None = None,
    instruction: str = "",
    reset: dict[str, Any] | None = None,
    success_at: float = 1.0,
) -> Iterator[dict[str, Any]]:
    """Starts of episodes.

    Args:
        size: rows.
        seed: of the episodes; row i asks the server for its own.
        url: of the server, `http://host:port`.
        field: of the action, which the message is put into.
        form: json: the message is the action.
        fixed: other fields of every action, such as `{type: call_tool}`.
        show: fields of the observation that the policy reads; all of them as JSON by default.
        instruction: the task in words, before the first observation.
        reset: what else a reset is told (`split`, `index`, a level).
        success_at: the sum of rewards that is a success.

    Raises:
        RecipeError: nobody answers there, the library is not installed, or a setting is none.
    """
    if not url.startswith(("http://", "https://")):
        raise RecipeError(
            f"environment openenv: url {url!r} is no address", fix="Write http://host:port of the server."
        )
    if form not in ("text", "json"):
        raise RecipeError(f"environment openenv: form {form!r} is neither text nor json.")
    settings: dict[str, Any] = {
        "environment": "openenv", "url": url, "field": field, "form": form, "fixed": dict(fixed or {}), "show": list(show or []),
        "reset": dict(reset or {}), "success_at": float(success_at),
    }  # fmt: skip
    try:
        session = _Session(url)
    except ImportError:
        raise RecipeError(f"environment openenv: install websockets: {install_hint('openenv')}.") from None
    except Unavailable as error:
        raise RecipeError(
            f"environment openenv: no server answers ({error})", fix="Start it, or correct the url."
        ) from None
    try:
        for number in range(size):
            info = {**settings, "seed": seed * 1_000_003 + number}
            info["start"] = _shown(session.ask("reset", {**info["reset"], "seed": info["seed"]}), info["show"])
            text = "\n\n".join(part for part in (instruction, info["start"]) if part.strip())
            yield {
                "prompt": [{"role": "user", "content": text}], "answer": "win", "verifier": "exact", "info": info,
            }  # fmt: skip
    except Unavailable as error:
        raise RecipeError(f"environment openenv: {url} does not start an episode ({error}).") from None
    finally:
        session.close()
