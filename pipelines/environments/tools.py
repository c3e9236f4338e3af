"""Problems that are answered with the help of tools, called in the chat template's own form.

The policy's message is an answer, or holds calls as Qwen's and SmolLM's templates write them:

    <tool_call>
    {"name": "calculator", "arguments": {"expression": "12 * 31"}}
    </tool_call>

Their replies come back as one message of the role `tool`; what is no call gets an error to read. A message without calls ends the
episode, and the problem's own verifier scores it. `info.toolbox` says which tools there are (`pipelines.tools`), `info.tools` are
their schemas, which the chat template shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines import verifiers
from pipelines.data import marks
from pipelines.data.records import Message, Problem
from pipelines.environments import Step, Unavailable, _word_problems
from pipelines.environments._answered import scored_answer
from pipelines.tools import (
    Outcome,
    Spec,
    Toolbox,
    ToolUnavailable,
    calculator,
    call_text,
    crop,
    function,
    mcp_server,
    python,
    search,
    toolbox,
)
from pipelines.verifiers.tool_calls import CLOSE, OPEN, NoCalls, calls

LIBRARIES = ("bm25s", "mcp")
SHOWS_IMAGES = True
KINDS = (calculator, crop, function, mcp_server, python, search)
"""Imported by name, so that their code is in the key of every stage that plays episodes."""
MOST_CALLS = 8
"""Calls of one message that are made."""


class World:
    """An episode with the tools in the problem's info; `costs` of the info are taken off the reward of a turn.

    Costs: `call` for every call, `error` for a call without result, `malformed` for text in the tags that is no call.
    """

    waits = True

    def __init__(self) -> None:
        self.problem: Problem | None = None
        self.box = Toolbox()
        self.history: list[str] = []
        self.done = False

    def reset(self, problem: Problem) -> list[Message]:
        """Start with the problem's prompt and the replies that it may hold already."""
        self._open(problem, [message["content"] for message in problem.prompt[1:]])
        return list(problem.prompt)

    def _open(self, problem: Problem, history: list[str]) -> None:
        self.problem, self.history, self.done = problem, history, False
        self.box = toolbox(problem.info.get("toolbox") or [])
        self.waits = self.box.waits or problem.verifier in (*verifiers.SANDBOXED, *verifiers.POOLED)

    def state_key(self) -> str:
        """The question and all that was said since."""
        assert self.problem is not None
        return json.dumps([self.problem.uid, self.problem.prompt[:1], *self.history])

    def step(self, message: str) -> Step:
        """Make the calls of a message, or score it as the answer.

        Raises:
            Unavailable: the server behind a tool is gone, or the sandbox failed.
        """
        assert self.problem is not None
        self.history.append(message)
        if OPEN not in message:
            return self._answer(message)
        costs: dict[str, float] = self.problem.info.get("costs") or {}
        try:
            asked = calls(message)
        except NoCalls as error:
            return self._observed(
                marks.unnamed(f"error: {error}"), {"malformed": -costs.get("malformed", 0.0)}, _malformed(message)
            )
        try:
            performed = [self.box.call(*call) for call in asked[:MOST_CALLS]]
        except ToolUnavailable as error:
            raise Unavailable(str(error)) from error
        texts = [call.text for call in performed]
        if len(asked) > MOST_CALLS:
            texts.append(f"error: only the first {MOST_CALLS} calls were made")
        failed = sum(call.outcome != Outcome.OK for call in performed)
        parts = {"call": -costs.get("call", 0.0) * len(performed), "error": -costs.get("error", 0.0) * failed}
        return self._observed("\n".join(texts), parts, [call.body() for call in performed])

    def _observed(self, text: str, parts: dict[str, float], performed: list[dict[str, Any]]) -> Step:
        self.history.append(text)
        parts = {name: value for name, value in parts.items() if value}
        invalid = any(call["outcome"] != Outcome.OK for call in performed)
        info = {"success": False, "invalid": invalid}
        return Step(text, sum(parts.values()), False, self.state_key(), info, "tool", parts, performed)

    def _answer(self, message: str) -> Step:
        assert self.problem is not None
        self.done = True
        return scored_answer(self.problem, message, self.state_key())

    def state_dict(self) -> dict[str, Any]:
        """Problem and history; tools keep nothing of an episode."""
        assert self.problem is not None
        problem = {name: getattr(self.problem, name) for name in Problem.__dataclass_fields__}
        return {"problem": problem, "history": list(self.history), "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._open(Problem(**state["problem"]), list(state["history"]))
        self.done = state["done"]


def _malformed(message: str) -> list[dict[str, Any]]:
    text = message.partition(OPEN)[2].partition(CLOSE)[0][:200]
    return [{"name": "", "arguments": {}, "outcome": str(Outcome.MALFORMED), "text": text}]


def problems(
    size: int,
    seed: int,
    *,
    tools: Sequence[Spec] = ("calculator",),
    plain_share: float = 0.3,
    digits: Sequence[int] = (2, 2),
    demonstrations: bool = False,
    demonstrated_calls: float = 1.0,
    conversations: bool = False,
    costs: dict[str, float] | None = None,
    kinds: Sequence[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Word problems: some ask for a product, a sum or a difference, some only for what the text says.

    Args:
        size: rows.
        seed: of the problems.
        tools: that the policy is offered; [] for none.
        plain_share: share of problems that need no arithmetic.
        digits: of the two factors; sums and differences have one more.
        demonstrations: one row per turn of an expert, with the turns before it as the conversation, for SFT. The expert calls the
            calculator whatever the problem is, with the chance `demonstrated_calls`, and answers at once otherwise.
        conversations: one row per conversation instead, for `sft.turns: all`.
        costs: `call`, `error` and `malformed` that a turn's reward is less by.
        kinds: of problems, any of product, sum, difference, comparison, lookup; default: all.
    """
    box = toolbox(tools)
    draw = _word_problems.Drawer(seed, plain_share, (digits[0], digits[1]), kinds)
    yielded = 0
    while yielded < size:
        question = draw.next()
        prompt: list[Message] = [{"role": "user", "content": question.text}]
        info: dict[str, Any] = {"environment": "tools", "toolbox": list(tools), "kind": question.kind}
        info |= {"tools": box.schemas} if box.tools else {}
        info |= {"costs": dict(costs)} if costs else {}
        if box.tools and question.kind in _word_problems.ARITHMETIC:
            info["reference_calls"] = [{"name": "calculator", "arguments": {"expression": question.expression}}]
        turns = [(prompt, question.answer)]
        if demonstrations and box.tools and draw.chance(demonstrated_calls):
            call = call_text("calculator", {"expression": question.expression})
            reply: Message = {"role": "tool", "content": calculator.calculate(question.expression)}
            turns = [(prompt, call), ([*prompt, {"role": "assistant", "content": call}, reply], question.answer)]
        for conversation, text in turns[-1:] if conversations else turns:
            if yielded == size:
                return
            row = info | ({"solution": text} if demonstrations else {})
            yield {"prompt": conversation, "answer": question.answer, "verifier": "exact", "info": row}
            yielded += 1
