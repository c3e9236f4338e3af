"""Episodes that a program drives: it asks the endpoint for each message, and the policy's messages are the replies."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty
from typing import Any, Literal, Protocol, TypeVar

from pipelines.base.errors import RecipeError
from pipelines.data.records import Message, Problem
from pipelines.environments import Step, Unavailable, _requests
from pipelines.environments._answered import scored_answer
from pipelines.environments._endpoint import Asked, Session, endpoint
from pipelines.environments._forms import Late, Limits
from pipelines.environments._requests import Refused, Request
from pipelines.tools import Outcome

MOST_WAIT_S = 110.0
"""How long a step may wait for the program; below what a step may take."""
SIDE_BY_SIDE = 8
"""Programs whose first requests are read at once."""
log = logging.getLogger("whetstone")
_told: set[str] = set()
MOST_TOLD = 50
T = TypeVar("T")


class Killable(Protocol):
    """A program that was started."""

    def kill(self) -> None:
        """End it; returns at once."""


class Ending(Protocol):
    """What came of a program."""

    @property
    def why(self) -> str:
        """In words, for one that has asked nothing."""


@dataclass(frozen=True)
class Verdict:
    """What an ended program comes to."""

    answer: str | None = None
    """Text for the problem's verifier; None where the rest says it all."""
    reward: float = 0.0
    success: bool = False
    status: str = "incorrect"
    failed: bool = False
    """It ended with an error, or without a result."""
    components: dict[str, float] = field(default_factory=dict)
    """Named parts of the reward; empty where it has none."""


class Driven(ABC):
    """An episode of the program in the problem's info, which starts at the first step; a `World` inherits from it.

    A copy is made by starting the program again and giving it the same messages; one that does something else then is refused.

    Attributes:
        name: the environment's.
    """

    waits = True
    name: str

    def __init__(self) -> None:
        self.problem: Problem | None = None
        self.turns: list[dict[str, Any]] = []
        """Of each turn the message's `text`, what `drawn` told, and the messages `shown` after it."""
        self.done = False
        self._cost: tuple[int, int, bool] = (0, 0, False)
        self._run: Run | None = None

    def reset(self, problem: Problem) -> list[Message]:
        """The problem's prompt: what the program asks first.

        Raises:
            RecipeError: the record is a demonstration, which begins in the middle of an episode.
        """
        if "solution" in problem.info:
            raise RecipeError(
                f"environment {self.name}: a record of `demonstrations: true` begins within an episode, and cannot be played",
                fix="Send demonstrations to the splits of SFT only (`splits` of the source).",
            )
        self._leave()
        self.problem, self.turns, self.done = problem, [], False
        return list(problem.prompt)

    @abstractmethod
    def run_of(self, info: Mapping[str, Any]) -> Run:
        """The program of a problem's info, started.

        Raises:
            Unavailable: it does not start.
        """

    def _leave(self) -> None:
        if self._run is not None:
            self._run.end()
            self._run = None

    def go_on(self, run: Run) -> None:
        """Play with a program that has asked for its first message already."""
        self._run = run

    def state_key(self) -> str:
        """The prompt and what was said and shown since."""
        assert self.problem is not None
        return json.dumps(
            [self.problem.prompt, *([turn["text"], turn["shown"], turn["restart"]] for turn in self.turns)]
        )

    def limits(self) -> Limits:
        """Those of the program's request."""
        assert self.problem is not None
        if self._run is not None:
            return self._run.request.limits
        if self.turns:
            return Limits(*self.turns[-1]["limits"])
        first = self.problem.info["limits"]
        return Limits(first["max_tokens"], tuple(first["stop"]))

    def drawn(self, prompt: int, completion: int, cut: bool) -> None:
        """Remember what the reply to the program will tell."""
        self._cost = (prompt, completion, cut)

    def step(self, message: str) -> Step:
        """Reply to the program, and wait for its next request or its end.

        Raises:
            Unavailable: the program does what an episode cannot hold, or does not start.
            Late: it takes too long.
            RecipeError: it starts otherwise than the data were made with.
        """
        assert self.problem is not None
        if self.done:
            return Step("", 0.0, True, self.state_key(), {"success": False, "invalid": True})
        try:
            run = self._run or self._begun()
            prompt, completion, cut = self._cost
            turn: dict[str, Any] = {
                "text": message,
                "cost": [prompt, completion],
                "cut": cut,
                "shown": [],
                "restart": False,
            }
            self.turns.append(turn)
            calls = run.reply(turn)
            ended = run.next()
        except Unavailable as error:
            self._leave()
            tell(f"environment {self.name}: an episode is not scored: {error}")
            raise
        if ended is None:
            limits = run.request.limits
            turn |= {"shown": run.shown, "restart": run.restarted, "limits": [limits.max_tokens, list(limits.stop)]}
            return self._observed(run.shown, run.restarted, calls)
        self.done = True
        self._leave()
        return self._scored(ended, calls)

    def _begun(self) -> Run:
        """The program, started and given all earlier messages."""
        assert self.problem is not None
        info = self.problem.info
        self._run = run = self.run_of(info)
        weakref.finalize(self, run.end)
        request = run.first()
        if digest(request) != info["opening"]:
            raise RecipeError(
                f"environment {self.name}: the program's first request is another one than when the data were made",
                fix="A program asks the same of a task each time: no dates and no random numbers in its first request.",
            )
        for turn in self.turns:
            run.reply(turn)
            if run.next() is not None or (run.shown, run.restarted) != (turn["shown"], turn["restart"]):
                raise Unavailable("the program does something else when an episode is played again")
        return run

    def _observed(self, shown: list[Message], restarted: bool, calls: list[dict[str, Any]]) -> Step:
        replies = (message["content"] for message in shown if message["role"] == "tool")
        for call in calls:
            if call["outcome"] == Outcome.OK:
                call["text"] = next(replies, "")
        invalid = any(call["outcome"] != Outcome.OK for call in calls)
        text = "\n".join(message["content"] for message in shown)
        role: Literal["user", "tool"] = "tool" if all(message["role"] == "tool" for message in shown) else "user"
        info = {"success": False, "invalid": invalid}
        return Step(text, 0.0, False, self.state_key(), info, role, calls=calls, messages=shown, restart=restarted)

    def _scored(self, ended: Verdict, calls: list[dict[str, Any]]) -> Step:
        """The step with which the program has ended."""
        assert self.problem is not None
        if ended.answer is not None:
            step = scored_answer(self.problem, ended.answer, self.state_key())
            step.calls.extend(calls)
            return step
        info = {"success": ended.success, "status": ended.status, "invalid": ended.failed}
        components = ended.components or {"answer": ended.reward}
        return Step("", ended.reward, True, self.state_key(), info, components=components, calls=calls)

    def state_dict(self) -> dict[str, Any]:
        """The problem and all turns."""
        assert self.problem is not None
        problem = {name: getattr(self.problem, name) for name in Problem.__dataclass_fields__}
        return {"problem": problem, "turns": [dict(turn) for turn in self.turns], "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off; the program is started at the next step."""
        self.reset(Problem(**state["problem"]))
        self.turns, self.done = [dict(turn) for turn in state["turns"]], state["done"]


class Run:
    """A program that runs, and its conversation so far.

    Args:
        start: starts it; is told its episode and the address to ask, and returns what can be killed. What it comes to is put into the
            episode's `arrived`.
        verdict: what its end is worth.
        timeout_s: what it may take itself; waiting for the policy does not count.
    """

    def __init__(
        self, start: Callable[[Session, str], Killable], verdict: Callable[[Any], Verdict], timeout_s: float
    ) -> None:
        self.verdict, self.timeout_s, self.left_s = verdict, timeout_s, timeout_s
        self.server = endpoint()
        self.session, address = self.server.open()
        self.history: list[Message] = []
        self.asked = Asked(Request([], None, Limits(), "policy"), bool)
        self.shown: list[Message] = []
        """What the last request adds to the conversation, or all of a new one."""
        self.restarted, self.replies = False, 0
        try:
            self.program = start(self.session, address)
        except Unavailable:
            self.server.end(self.session)
            raise

    def first(self) -> Request:
        """The first request.

        Raises:
            Unavailable: there is none, or it cannot be played.
        """
        asked = self._wait()
        if not isinstance(asked, Asked):
            raise Unavailable(f"the program asks nothing: {asked.why}")
        self.asked = asked
        self.history = list(asked.request.messages)
        return asked.request

    @property
    def request(self) -> Request:
        """The one that waits for its reply."""
        return self.asked.request

    def reply(self, turn: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send the policy's message; the calls in it, as `Trajectory.turn_calls` has them."""
        text, finish = turn["text"], "length" if turn["cut"] else "stop"
        ends = [(place, stop) for stop in self.request.limits.stop if (place := text.find(stop)) >= 0]
        stopped = min(ends)[1] if ends else None
        if ends:
            text, finish = text[: min(ends)[0]], "stop"
        number, self.replies = self.replies, self.replies + 1
        message, calls = _requests.message_of(text, number, bool(self.request.tools))
        self.history.append(_requests.plain(message))
        prompt, completion = turn["cost"]
        finish = "tool_calls" if calls else finish
        self.session.answer(self.asked, _requests.reply(message, number, finish, (prompt, completion), stopped))
        if calls is None:
            return [{"name": "", "arguments": {}, "outcome": str(Outcome.MALFORMED), "text": ""}]
        return [
            {"name": name, "arguments": arguments, "outcome": str(Outcome.OK), "text": ""} for name, arguments in calls
        ]

    def next(self) -> Verdict | None:
        """Wait for the next request (None), or for what the program comes to.

        Raises:
            Unavailable: the request cannot be played.
            Late: the program takes too long.
        """
        asked = self._wait()
        if not isinstance(asked, Asked):
            return self.verdict(asked)
        try:
            added = _requests.following(self.history, asked.request, self.request.tools)
        except _requests.Refused as error:
            raise Unavailable(str(error)) from error
        self.asked, self.restarted = asked, added is None
        self.shown = list(asked.request.messages) if added is None else added
        self.history = list(asked.request.messages)
        return None

    def _wait(self) -> Asked | Ending:
        """The next request, or the program's end."""
        began = time.monotonic()
        try:
            event: Asked | Ending | Refused = self.session.arrived.get(timeout=max(0.0, min(self.left_s, MOST_WAIT_S)))
        except Empty:
            limits = f"{self.timeout_s:g} s in all or {MOST_WAIT_S:g} s for a request"
            raise Late(f"the program takes longer than {limits}") from None
        finally:
            self.left_s -= time.monotonic() - began
        if isinstance(event, Refused):
            raise Unavailable(str(event))
        return event

    def end(self) -> None:
        """End the program."""
        self.server.end(self.session)
        self.program.kill()


def tell(text: str) -> None:
    """Log it, once in this process; reasons may have no end."""
    if text not in _told and len(_told) < MOST_TOLD:
        _told.add(text)
        log.warning("%s", text)


def digest(request: Request) -> str:
    return hashlib.sha256(request.asked.encode()).hexdigest()[:32]


def opening(run: Run) -> tuple[list[Message], dict[str, Any], tuple[str, ...]]:
    """What a program asks first: the prompt of its row, what the row's info says of it, and the fields of the request that change nothing.

    Raises:
        Unavailable: it asks nothing, or what cannot be played.
    """
    request = run.first()
    info = {
        "opening": digest(request),
        "limits": {"max_tokens": request.limits.max_tokens, "stop": list(request.limits.stop)},
        **({"tools": request.tools} if request.tools else {}),
    }
    return request.messages, info, request.ignored


def rows_side_by_side(
    name: str, size: int, tasks: Iterator[T], rows_of: Callable[[T], tuple[list[dict[str, Any]], tuple[str, ...]]]
) -> Iterator[dict[str, Any]]:
    """The rows of tasks, of several at once; ends with a note about fields of requests that change nothing.

    Args:
        name: the environment's.
        size: rows.
        rows_of: the rows of a task, and those fields.

    Raises:
        RecipeError: there are fewer rows.
    """
    ignored = Counter[str]()
    yielded = 0
    with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix=name) as threads:
        while some := list(itertools.islice(tasks, SIDE_BY_SIDE)):
            for rows, fields in threads.map(rows_of, some):
                ignored.update(fields)
                yield from rows[: size - yielded]
                yielded += len(rows)
            if yielded >= size:
                break
    if yielded < size:
        raise RecipeError(
            f"environment {name}: the tasks make {yielded} rows, {size} are asked for",
            fix="Lower `size` of the source.",
        )
    for field_name, count in sorted(ignored.items()):
        tell(
            f"environment {name}: {count} first requests set {field_name}, which changes nothing: the recipe says how is sampled"
        )
