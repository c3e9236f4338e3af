"""Environments of the package `verifiers` (`pip install verifiers==0.1.10`): single-turn, multi-turn and with tools.

An environment is what its `load_environment` returns, named as `module:load_environment`. The policy's messages take the place of a
model's responses; its rubric scores the finished conversation, and its weighted functions are the reward's components. Calls of tools
are read in the chat template's own form, as by the environment `tools`.
"""

from __future__ import annotations

import atexit
import json
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from typing import Any, Literal

from pipelines.base.distribution import install_hint
from pipelines.base.errors import RecipeError
from pipelines.base.user_functions import load_function
from pipelines.data.records import Message, Problem
from pipelines.environments import Step, Unavailable
from pipelines.environments._replayed import Replayed
from pipelines.environments._rows import starting_row
from pipelines.verifiers.tool_calls import OPEN, NoCalls, calls

Part = Literal["train", "eval"]
ROW = ("prompt", "answer", "info", "task", "example_id")
"""What of a row of its data set an environment reads."""

LIBRARIES = ("verifiers",)
EXTRA = "verifiers"
TOOLS = True
OUTSIDE = True


class World(Replayed):
    """An episode of the environment and row in the problem's info. A copy is made by playing the same messages again.

    Success: the rubric gives `success_at`.
    """

    waits = True

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Any] = []
        self.state: Any = None

    def reset(self, problem: Problem) -> list[Message]:
        """Start the episode; the conversation is the environment's own."""
        self.problem, self.messages, self.done = problem, [], False
        self.env = _environment(str(problem.info["load"]), json.dumps(problem.info["args"], sort_keys=True))
        self.shown = _run(self._start)
        return _plain(self.shown)

    async def _start(self) -> list[Any]:
        assert self.problem is not None
        self.state = await self.env.init_state(dict(self.problem.info["row"]), None, "policy")
        self.state = await self.env.setup_state(self.state)
        return list(await self.env.get_prompt_messages(self.state))

    def state_key(self) -> str:
        """The row and all messages."""
        assert self.problem is not None
        return json.dumps([self.problem.info, self.messages], sort_keys=True)

    def step(self, message: str) -> Step:
        """One message to the environment.

        Raises:
            Unavailable: the environment says that it failed.
            RecipeError: it rewrites the conversation.
        """
        if self.done:
            return self.over()
        self.messages.append(message)
        reply = _run(self._answer, message)
        if reply is not None:
            role: Literal["user", "tool"] = "tool" if all(m["role"] == "tool" for m in reply) else "user"
            text = "\n".join(m["content"] for m in _plain(reply))
            return Step(text, 0.0, False, self.state_key(), {"success": False}, role)
        assert self.problem is not None
        self.done = True
        components = _components(self.env.rubric, self.state["metrics"])
        reward = sum(components.values())
        success = reward >= self.problem.info["success_at"]
        return Step("", reward, True, self.state_key(), {"success": success}, components=components)

    async def _answer(self, message: str) -> list[Any] | None:
        """What the environment says to a message; None at the end, when the rubric has scored."""
        await self.env.add_model_response(self.state, self.shown, _response(message, bool(self.env.oai_tools)))
        conversation = [*self.shown, *self.state["trajectory"][-1]["completion"]]
        if not await self._completed():
            prompt = list(await self.env.get_prompt_messages(self.state))
            if not await self._completed():
                if prompt[: len(conversation)] != conversation:
                    raise RecipeError(
                        f"environment verifiers_package: {self._name()} rewrites its conversation. Tokens of a rollout stay as they "
                        "were drawn, so only environments that append to it can be played."
                    )
                self.shown = prompt
                return prompt[len(conversation) :]
        await self.env.render_completion(self.state)
        await self.env.rubric.score_rollout(self.state)
        return None

    async def _completed(self) -> bool:
        """Whether a stop condition holds.

        Raises:
            Unavailable: because of an error.
        """
        completed = await self.env.is_completed(self.state)
        if self.state["error"] is not None:
            raise Unavailable(repr(self.state["error"]))
        return bool(completed)

    def _name(self) -> str:
        assert self.problem is not None
        return str(self.problem.info["load"])


def hidden(info: Mapping[str, Any]) -> list[Any]:
    """The environment, and the row's answer and own info."""
    row = info.get("row") or {}
    return [info.get("load"), info.get("args"), row.get("answer"), row.get("info")]


@cache
def _loop() -> Any:
    """The event loop that all episodes of the process share, in a thread of its own."""
    from anyio.from_thread import start_blocking_portal

    context = start_blocking_portal()
    portal = context.__enter__()
    atexit.register(context.__exit__, None, None, None)
    return portal


def _run(action: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Wait for what an environment does; its own errors mean that it is not there."""
    import verifiers

    try:
        return _loop().call(action, *arguments)
    except verifiers.Error as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error


@cache
def _environment(load: str, args: str) -> Any:
    """The environment that a function returns. The package takes over Ctrl-C and SIGTERM; the stage keeps its own handlers.

    Raises:
        RecipeError: the package or the module is not installed, or the environment cannot be played.
    """
    try:
        import verifiers
    except ImportError:
        raise RecipeError(f"environment verifiers_package: install it: {install_hint('verifiers')}.") from None
    function = load_function(load, "environment verifiers_package: load")
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        env = function(**json.loads(args))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not isinstance(env, verifiers.MultiTurnEnv) or env.message_type != "chat":
        raise RecipeError(f"environment verifiers_package: {load} returns no single- or multi-turn chat environment.")
    for rubric in _rubrics(env.rubric):
        for scored in rubric.funcs:
            if rubric._is_group_func(scored):
                raise RecipeError(
                    f"environment verifiers_package: {scored.__name__} of {load} scores whole groups; an episode is scored alone."
                )
    return env


def _rubrics(rubric: Any) -> list[Any]:
    """The rubrics of a group, and the one that is none."""
    inner = getattr(rubric, "rubrics", None)
    return [rubric] if inner is None else [each for part in inner for each in _rubrics(part)]


def _components(rubric: Any, metrics: dict[str, float]) -> dict[str, float]:
    """The parts of the reward: functions times weights; those without weight only measure.

    Functions of one name in several rubrics come as their sum, which is right where their weights are equal.

    Raises:
        RecipeError: they are not.
    """
    weights: dict[str, float] = {}
    for each in _rubrics(rubric):
        for function, weight in zip(each.funcs, each.weights, strict=True):
            if weights.setdefault(function.__name__, weight) != weight:
                raise RecipeError(
                    f"environment verifiers_package: two functions {function.__name__!r} with different weights",
                    fix="Rename one.",
                )
    return {name: float(value) * weights[name] for name, value in metrics.items() if weights[name]}


def _response(message: str, tools: bool) -> Any:
    """A message as a model's response; well-formed calls in their tags are its tool calls, as an inference server reads them."""
    from openai.types.chat import ChatCompletion

    asked = []
    if tools and OPEN in message:
        try:
            asked = calls(message)
        except NoCalls:
            asked = []
    body: dict[str, Any] = {"role": "assistant", "content": message.partition(OPEN)[0].strip() if asked else message}
    if asked:
        body["tool_calls"] = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for i, (name, arguments) in enumerate(asked)
        ]
    choice = {"index": 0, "finish_reason": "tool_calls" if asked else "stop", "message": body}
    return ChatCompletion.model_validate(
        {"id": "policy", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
    )


def _plain(messages: list[Any]) -> list[Message]:
    """Messages of text.

    Raises:
        RecipeError: one holds something else.
    """
    texts: list[Message] = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            if not all(part.get("type") == "text" for part in content):
                raise RecipeError(
                    "environment verifiers_package: a message that is not text only; images are not supported."
                )
            content = "\n".join(str(part["text"]) for part in content)
        texts.append({"role": str(message["role"]), "content": content})
    return texts


def problems(
    size: int,
    seed: int,
    *,
    load: str,
    args: dict[str, Any] | None = None,
    part: Part = "train",
    success_at: float = 1.0,
) -> Iterator[dict[str, Any]]:
    """Rows of the environment's data set, in an order of the seed's.

    Args:
        size: rows.
        seed: of their order.
        load: `its_module:load_environment` of the environment's package, or `FILE.py:load_environment`.
        args: keyword arguments of that function.
        part: train or eval: which of its data sets.
        success_at: the reward that is a success.

    Raises:
        RecipeError: the environment cannot be loaded, or has fewer rows.
    """
    env = _environment(load, json.dumps(args or {}, sort_keys=True))
    rows = env.get_dataset() if part == "train" else env.get_eval_dataset()
    if len(rows) < size:
        raise RecipeError(
            f"environment verifiers_package: {load} has {len(rows)} rows ({part}), {size} are asked for",
            fix="Lower size.",
        )
    tools = {"tools": env.oai_tools} if env.oai_tools else {}
    for row in rows.shuffle(seed=seed).select(range(size)):
        kept = json.loads(json.dumps({name: row[name] for name in ROW if row.get(name) is not None}, default=str))
        info = {
            "environment": "verifiers_package", "load": load, "args": dict(args or {}), "row": kept, "success_at": float(success_at),
            **tools,
        }  # fmt: skip
        answer = str(kept.get("answer") or "win")
        yield starting_row(World(), answer, info)
