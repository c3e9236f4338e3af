"""Any agent program plays the policy: a child process that asks an OpenAI-compatible endpoint on the loopback interface.

The program is started with `OPENAI_BASE_URL` and `OPENAI_API_KEY` (and Anthropic's) in its environment and its task as standard input.
Each of its requests for a message is a turn of the episode: it waits until the policy's message is drawn. What the program adds to
the conversation afterwards is the observation. Messages of the policy are never rendered again where a request goes on from the
conversation so far, message by message; one that does not begins a new conversation in the episode.

The reward comes from the program's end: its result is scored by the problem's verifier, is the reward itself, or is its exit code.
The program is trusted: it runs as the user, outside of the sandbox, because it needs the network to reach the endpoint.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty
from typing import Any, Literal

from pipelines.base.errors import Problem as Told
from pipelines.base.errors import RecipeError
from pipelines.base.user_functions import load_function, require_there
from pipelines.data.records import Message, Problem
from pipelines.environments import Step, Unavailable, _agent_settings, _requests, _tasks
from pipelines.environments._agent_settings import Result, Settings, Verdict
from pipelines.environments._answered import scored_answer
from pipelines.environments._endpoint import Asked, endpoint
from pipelines.environments._forms import Late, Limits
from pipelines.environments._program import Ended, Program
from pipelines.environments._requests import Refused, Request
from pipelines.environments._tasks import Task, tasks_of
from pipelines.tools import Outcome

PLAYED = True
OUTSIDE = True
TOOLS = True
VERIFIERS = None
"""A result is scored by the verifier of its task, which may be any."""
MOST_WAIT_S = 110.0
"""How long a step may wait for the program; below what a step may take."""
SIDE_BY_SIDE = 8
"""Programs whose first requests are read at once."""
log = logging.getLogger("whetstone")
_told: set[str] = set()
MOST_TOLD = 50


class World:
    """An episode of the program in the problem's info, which starts at the first step.

    A copy is made by starting the program again and giving it the same messages; one that does something else then is refused.
    """

    waits = True

    def __init__(self) -> None:
        self.problem: Problem | None = None
        self.turns: list[dict[str, Any]] = []
        """Of each turn the message's `text`, what `drawn` told, and the messages `shown` after it."""
        self.done = False
        self._cost: tuple[int, int, bool] = (0, 0, False)
        self._run: _Run | None = None

    def reset(self, problem: Problem) -> list[Message]:
        """The problem's prompt: what the program asks first.

        Raises:
            RecipeError: the record is a demonstration, which begins in the middle of an episode.
        """
        if "solution" in problem.info:
            raise RecipeError(
                "environment agent: a record of `demonstrations: true` begins within an episode, and cannot be played",
                fix="Send demonstrations to the splits of SFT only (`splits` of the source).",
            )
        self._leave()
        self.problem, self.turns, self.done = problem, [], False
        return list(problem.prompt)

    def _leave(self) -> None:
        if self._run is not None:
            self._run.end()
            self._run = None

    def go_on(self, run: _Run) -> None:
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
            _tell(f"environment agent: an episode is not scored: {error}")
            raise
        if ended is None:
            limits = run.request.limits
            turn |= {"shown": run.shown, "restart": run.restarted, "limits": [limits.max_tokens, list(limits.stop)]}
            return self._observed(run.shown, run.restarted, calls)
        self.done = True
        self._leave()
        return self._scored(ended, calls)

    def _begun(self) -> _Run:
        """The program, started and given all earlier messages."""
        assert self.problem is not None
        info = self.problem.info
        self._run = run = _Run(Settings(**info["settings"]), str(info["task"]))
        weakref.finalize(self, run.end)
        request = run.first()
        if _digest(request) != info["opening"]:
            raise RecipeError(
                "environment agent: the program's first request is another one than when the data were made",
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
        components = {"answer": ended.reward}
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


class _Run:
    """A program that runs, and its conversation so far."""

    def __init__(self, settings: Settings, task: str) -> None:
        self.settings, self.left_s = settings, settings.timeout_s
        self.server = endpoint()
        self.session, address = self.server.open()
        self.history: list[Message] = []
        self.asked = Asked(Request([], None, Limits(), "policy"), bool)
        self.shown: list[Message] = []
        """What the last request adds to the conversation, or all of a new one."""
        self.restarted, self.replies = False, 0
        self.program = Program(
            settings.command_for(task),
            {
                **settings.exported(),
                "OPENAI_BASE_URL": address,
                "OPENAI_API_BASE": address,
                "OPENAI_API_KEY": self.session.key,
                "OPENAI_MODEL": "policy",
                "ANTHROPIC_BASE_URL": address.removesuffix("/v1"),
                "ANTHROPIC_API_KEY": self.session.key,
                "ANTHROPIC_MODEL": "policy",
                "NO_PROXY": "127.0.0.1",
                "no_proxy": "127.0.0.1",
                "WHETSTONE_TASK": task,
            },
            task=task,
            output=settings.output_kb * 1024,
            result_file=settings.result_file,
            on_end=self.session.arrived.put,
        )

    def first(self) -> Request:
        """The first request.

        Raises:
            Unavailable: there is none, or it cannot be played.
        """
        asked = self._wait()
        if isinstance(asked, Ended):
            raise Unavailable(f"the program asks nothing: it ends with exit code {asked.code}{_words(asked.stderr)}")
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
        if isinstance(asked, Ended):
            return self.settings.verdict(asked)
        try:
            added = _requests.following(self.history, asked.request, self.request.tools)
        except _requests.Refused as error:
            raise Unavailable(str(error)) from error
        self.asked, self.restarted = asked, added is None
        self.shown = list(asked.request.messages) if added is None else added
        self.history = list(asked.request.messages)
        return None

    def _wait(self) -> Asked | Ended:
        """The next request, or the program's end."""
        began = time.monotonic()
        try:
            event: Asked | Ended | Refused = self.session.arrived.get(timeout=max(0.0, min(self.left_s, MOST_WAIT_S)))
        except Empty:
            limits = f"{self.settings.timeout_s:g} s in all or {MOST_WAIT_S:g} s for a request"
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


def _words(stderr: str) -> str:
    """The last line that a program wrote to standard error, for messages."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return f" ({lines[-1][:300]})" if lines else ""


def _tell(text: str) -> None:
    """Log it, once in this process; reasons may have no end."""
    if text not in _told and len(_told) < MOST_TOLD:
        _told.add(text)
        log.warning("%s", text)


def _digest(request: Request) -> str:
    return hashlib.sha256(request.asked.encode()).hexdigest()[:32]


def refusals(config: Mapping[str, Any]) -> Iterator[Told]:
    """What `plan` can tell to be wrong with the settings; nothing is started."""
    yield from _agent_settings.refusals(config)
    yield from _tasks.refusals(config.get("tasks"))
    expert = config.get("expert")
    if expert is None and config.get("demonstrations"):
        yield Told("expert", "demonstrations need one", "Name it: ./my_expert.py:answer.")
    elif expert is not None:
        try:
            require_there(str(expert), "expert")
        except RecipeError as error:
            yield from error.problems


def problems(
    size: int,
    seed: int,
    *,
    command: Sequence[str],
    tasks: str | Mapping[str, Any],
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    output_kb: int = 1024,
    result: Result = "answer",
    result_file: str | None = None,
    success_at: float = 1.0,
    expert: str | None = None,
    demonstrations: bool = False,
    files: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Tasks as the program puts them: each is started once, for its first request.

    Args:
        size: rows.
        seed: of the tasks.
        command: the program and its arguments; `{task}` is the task, `{here}` the folder that the run was started in.
        tasks: a file of tasks, or an environment and its settings (`tasks_of`).
        variables: of the program's environment; never a secret, because recipes are stored.
        timeout_s: what the program itself may take of an episode; waiting for the policy does not count.
        output_kb: what it may print.
        result: answer: the last line that it prints, for the task's verifier; reward: that line is the reward; exit_code: 0 is 1.
        result_file: of its folder, read in place of what it prints.
        success_at: the reward that is a success.
        expert: `FILE.py:function` or `module:function` from the conversation, a list of messages, to the assistant's message.
        demonstrations: one row per message of the expert, with the conversation before it, for SFT.
        files: what the program reads beside the files that `command` names; like these they are in the keys of stages.

    Raises:
        RecipeError: settings are wrong, the program asks nothing, or asks what cannot be played.
    """
    config = {
        "command": list(command), "variables": dict(variables or {}), "timeout_s": timeout_s, "output_kb": output_kb, "result": result,
        "result_file": result_file, "success_at": success_at,
    }  # fmt: skip
    told = list(refusals({**config, "tasks": tasks, "expert": expert, "demonstrations": demonstrations}))
    if told:
        raise RecipeError(problems=[problem.inside("environment agent") for problem in told])
    function = load_function(expert, "environment agent: expert") if expert is not None and demonstrations else None
    settings, ignored = Settings(**config), Counter[str]()  # type: ignore[arg-type]

    def rows_of(task: Task) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        run = _Run(settings, task.text)
        try:
            row, fields = _opening(run, task)
            return (_demonstrated(row, run, function) if function is not None else [row]), fields
        finally:
            run.end()

    source = tasks_of(tasks, size, seed)
    yielded = 0
    with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="agent") as threads:
        while some := list(itertools.islice(source, SIDE_BY_SIDE)):
            for rows, fields in threads.map(rows_of, some):
                ignored.update(fields)
                yield from rows[: size - yielded]
                yielded += len(rows)
            if yielded >= size:
                break
    if yielded < size:
        raise RecipeError(
            f"environment agent: the tasks make {yielded} rows, {size} are asked for", fix="Lower `size` of the source."
        )
    for name, count in sorted(ignored.items()):
        _tell(
            f"environment agent: {count} first requests set {name}, which changes nothing: the recipe says how is sampled"
        )


def _opening(run: _Run, task: Task) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The row of a task: what the program asks first; and which fields of that request change nothing.

    Raises:
        RecipeError: it asks nothing, or what cannot be played.
    """
    settings = run.settings
    try:
        request = run.first()
    except Unavailable as error:
        raise RecipeError(
            f"environment agent: {settings.command[0]} cannot be played: {error}",
            fix="Try the program by hand against any OpenAI-compatible server.",
        ) from error
    info = {
        **task.info, "environment": "agent", "settings": vars(settings), "task": task.text, "opening": _digest(request),
        "limits": {"max_tokens": request.limits.max_tokens, "stop": list(request.limits.stop)},
        **({"tools": request.tools} if request.tools else {}),
    }  # fmt: skip
    answer, verifier = (task.answer, task.verifier) if settings.result == "answer" else ("win", "exact")
    return {"prompt": request.messages, "answer": answer, "verifier": verifier, "info": info}, request.ignored


def _demonstrated(row: dict[str, Any], run: _Run, expert: Callable[[list[Message]], str]) -> list[dict[str, Any]]:
    """The row of each message with which an expert plays a task.

    Raises:
        RecipeError: the program does what an episode cannot hold.
    """
    world = World()
    kept = {name: row[name] for name in ("answer", "verifier", "info")}
    conversation = world.reset(Problem(uid="", prompt=row["prompt"], source="", licence="", **kept))
    world.go_on(run)
    rows = []
    while True:
        text = str(expert(list(conversation)))
        rows.append({**row, "prompt": list(conversation), "info": {**row["info"], "solution": text}})
        try:
            step = world.step(text)
        except Unavailable as error:
            raise RecipeError(f"environment agent: an episode of the expert cannot be played: {error}.") from error
        if step.done:
            return rows
        message: Message = {"role": "assistant", "content": text}
        conversation = list(step.messages) if step.restart else [*conversation, message, *step.messages]
