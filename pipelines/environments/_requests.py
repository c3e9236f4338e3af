"""Requests for chat completions, as OpenAI's clients write them, and the replies to them.

A conversation here is a list of plain messages: tool calls of the assistant stand in its text, in the tags that chat templates write,
and tools' replies stand in the order in which the program gave them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.data.chat import ToolSchemas
from pipelines.data.records import Message
from pipelines.environments._forms import Limits
from pipelines.tools import call_text
from pipelines.verifiers.tool_calls import OPEN, Call, NoCalls, calls

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
READ = (
    "model", "messages", "tools", "max_tokens", "max_completion_tokens", "stop", "stream", "stream_options", "n", "logprobs",
    "top_logprobs", "response_format",
)  # fmt: skip
IGNORED = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "user",
    "metadata", "store", "parallel_tool_calls", "tool_choice", "service_tier", "reasoning_effort", "verbosity", "safety_identifier",
    "prompt_cache_key",
)  # fmt: skip
"""Fields of a request that change nothing here: the recipe says how is sampled."""
MOST_STOPS = 16


class Refused(ValueError):
    """A request that cannot be played as it is meant; says what the program did."""


@dataclass(frozen=True)
class Request:
    """What a program asks."""

    messages: list[Message]
    tools: ToolSchemas | None
    limits: Limits
    model: str
    stream: bool = False
    with_usage: bool = False
    """The stream ends with the usage."""
    ignored: tuple[str, ...] = ()
    """Fields that were set, and change nothing."""

    @property
    def asked(self) -> str:
        """Equal for requests that ask the same."""
        return json.dumps([self.messages, self.tools, self.limits.max_tokens, self.limits.stop], sort_keys=True)


def read(body: Any) -> Request:
    """A request from its JSON.

    Raises:
        Refused: it is none, or asks for what a trained row cannot hold.
    """
    fields, ignored = fields_of(body, READ, IGNORED)
    if fields.get("n", 1) != 1:
        raise Refused("the request asks for several completions (n)")
    if fields.get("logprobs") or fields.get("top_logprobs"):
        raise Refused("the request asks for log-probabilities (logprobs)")
    if fields.get("response_format", {"type": "text"}) != {"type": "text"}:
        raise Refused("the request asks for a form of the answer (response_format), which the sampler does not enforce")
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("the request has no messages")
    conversation = [plain(message) for message in messages]
    if conversation[-1]["role"] == "assistant":
        raise Refused("the last message is the assistant's own: a message cannot be continued")
    options = fields.get("stream_options")
    return Request(
        conversation,
        _tools(fields.get("tools")),
        _limits(fields),
        str(fields.get("model", "policy")),
        bool(fields.get("stream")),
        bool(isinstance(options, dict) and options.get("include_usage")),
        ignored,
    )


def fields_of(body: Any, read: Iterable[str], ignored: Iterable[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields that a request sets, and those of them that change nothing.

    Raises:
        Refused: it is no object, or sets a field that is neither read nor ignored.
    """
    if not isinstance(body, dict):
        raise Refused("the request is no JSON object")
    fields = {name: value for name, value in body.items() if value is not None}
    unknown = sorted(fields.keys() - {*read, *ignored})
    if unknown:
        raise Refused(f"the request sets {unknown[0]}, which is not supported")
    return fields, tuple(sorted(fields.keys() & {*ignored}))


def plain(message: Any) -> Message:
    """A message as text; reasoning that it carries is left out, as templates leave out that of earlier turns.

    Raises:
        Refused: it is none, or holds something else than text.

    >>> call = {"function": {"name": "f", "arguments": "{\\"x\\":1}"}}
    >>> plain({"role": "assistant", "content": None, "tool_calls": [call]})["content"]
    '<tool_call>\\n{"name": "f", "arguments": {"x": 1}}\\n</tool_call>'
    """
    role = ROLES.get(str(message.get("role"))) if isinstance(message, dict) else None
    if role is None:
        raise Refused("a message without one of the roles system, developer, user, assistant and tool")
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise Refused("a message that is not text only")
        content = "\n".join(part["text"] for part in content)
    if content is not None and not isinstance(content, str):
        raise Refused("a message whose content is no text")
    text = content or ""
    if role == "assistant":
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise Refused("tool calls of the assistant that are no list")
        texts = [text.strip(), *map(_call, calls)]
        text = "\n".join(each for each in texts if each)
    return {"role": role, "content": text}


def _call(call: Any) -> str:
    try:
        arguments = call["function"]["arguments"]
        return call_text(
            str(call["function"]["name"]), json.loads(arguments) if isinstance(arguments, str) else arguments
        )
    except (TypeError, KeyError, ValueError):
        raise Refused("a tool call of the assistant that is none") from None


def _tools(tools: Any) -> ToolSchemas | None:
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("function"), dict) and tool["function"].get("name")
        for tool in tools
    ):
        raise Refused("tools that are no functions")
    return tools


def _limits(fields: Mapping[str, Any]) -> Limits:
    most = fields.get("max_completion_tokens", fields.get("max_tokens"))
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise Refused("max_tokens is no number of tokens")
    stop = fields.get("stop", [])
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or len(stop) > MOST_STOPS or not all(isinstance(text, str) and text for text in stop):
        raise Refused(f"stop is neither a text nor a list of at most {MOST_STOPS}")
    return Limits(most, tuple(stop))


def following(history: list[Message], request: Request, tools: ToolSchemas | None) -> list[Message] | None:
    """The messages that a request adds to a conversation; None where it is another conversation.

    Args:
        history: what was said so far, the assistant's last reply included.
        tools: that were offered so far.

    Raises:
        Refused: it offers other tools.
    """
    if request.tools != tools:
        raise Refused("the request offers other tools than the one before")
    count = len(history)
    return request.messages[count:] if request.messages[:count] == history and len(request.messages) > count else None


def message_of(text: str, turn: int, offered: bool) -> tuple[dict[str, Any], list[Call] | None]:
    """The assistant's message as clients read it, and the calls in it; None for calls that are none.

    >>> message_of('Sure.<tool_call>{"name": "f", "arguments": {}}</tool_call>', 0, True)[0]["tool_calls"][0]["id"]
    'call_0_0'
    """
    if not offered or OPEN not in text:
        return {"role": "assistant", "content": text}, []
    try:
        asked = calls(text)
    except NoCalls:
        return {"role": "assistant", "content": text}, None
    entries = [
        {
            "id": f"call_{turn}_{place}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for place, (name, arguments) in enumerate(asked)
    ]
    return {"role": "assistant", "content": text.partition(OPEN)[0].strip() or None, "tool_calls": entries}, asked


def reply(
    message: dict[str, Any], turn: int, finish: str, usage: tuple[int, int], stop: str | None = None
) -> dict[str, Any]:
    """A chat completion; nothing in it depends on the time.

    Args:
        turn: counted from 0.
        finish: stop, length or tool_calls.
        usage: tokens of the prompt and of the completion.
        stop: the text among the request's that ended it, in vLLM's field `stop_reason`.
    """
    prompt, completion = usage
    return {
        "id": f"chatcmpl-{turn}",
        "object": "chat.completion",
        "created": 0,
        "model": "policy",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "stop_reason": stop, "logprobs": None}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }


def events(completion: Mapping[str, Any], with_usage: bool) -> str:
    """A chat completion as a stream of server-sent events: all of the message in one."""
    [choice] = completion["choices"]
    head = {name: completion[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(delta["tool_calls"])]
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
    ]
    if with_usage:
        chunks.append({**head, "choices": [], "usage": completion["usage"]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
