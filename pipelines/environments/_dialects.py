"""The interfaces in which programs ask for a message: OpenAI's chat completions, its responses, and Anthropic's messages.

The last two are read as the chat completion that asks the same, and its reply is written in their form. Models see no difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipelines.environments import _requests
from pipelines.environments._requests import Refused, Request

RESPONSES_READ = (
    "model", "input", "instructions", "tools", "max_output_tokens", "stream", "previous_response_id", "text", "top_logprobs", "background",
)  # fmt: skip
RESPONSES_IGNORED = (
    "temperature", "top_p", "metadata", "store", "user", "parallel_tool_calls", "tool_choice", "service_tier", "reasoning", "truncation",
    "include", "max_tool_calls", "prompt_cache_key", "safety_identifier", "stream_options",
)  # fmt: skip
MESSAGES_READ = ("model", "messages", "system", "tools", "max_tokens", "stop_sequences", "stream")
MESSAGES_IGNORED = (
    "temperature", "top_p", "top_k", "metadata", "tool_choice", "thinking", "service_tier", "output_config", "context_management",
    "cache_control",
)  # fmt: skip
THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
"""Parts that carry reasoning: left out, as templates leave out that of earlier turns."""

Earlier = Mapping[str, list[dict[str, Any]]]
"""Id of a reply → the conversation up to it, as messages of a chat completion."""


@dataclass(frozen=True)
class Dialect:
    """One of the interfaces."""

    read: Callable[[Any, Earlier], tuple[Request, list[dict[str, Any]]]]
    """The JSON of a request and earlier conversations → the request, and its messages that later ones may refer to.

    Raises:
        Refused: it is none, or asks for what a trained row cannot hold.
    """
    write: Callable[[Mapping[str, Any]], dict[str, Any]]
    """A chat completion → the reply."""
    events: Callable[[Mapping[str, Any], bool], str]
    """A chat completion, and whether its usage is wanted → the reply as server-sent events."""
    refusal: Callable[[str], dict[str, Any]]
    """The body of an error."""


def _chat(body: Any, earlier: Earlier) -> tuple[Request, list[dict[str, Any]]]:
    return _requests.read(body), []


def _openai_error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def _entries(items: Any, what: str) -> list[dict[str, Any]]:
    """A list of objects."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise Refused(f"{what} is no list of objects")
    return items


def _function(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    told = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in told.items() if value is not None}}


def _called(identity: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _responses(body: Any, earlier: Earlier) -> tuple[Request, list[dict[str, Any]]]:
    fields, ignored = _requests.fields_of(body, RESPONSES_READ, RESPONSES_IGNORED)
    if fields.get("background"):
        raise Refused("the request is to be answered in the background")
    form = fields.get("text", {})
    if not isinstance(form, dict) or form.get("format", {"type": "text"}) != {"type": "text"}:
        raise Refused("the request asks for a form of the answer (text.format), which the sampler does not enforce")
    before: list[dict[str, Any]] = []
    if "previous_response_id" in fields:
        before = earlier.get(str(fields["previous_response_id"]), [])
        if not before:
            raise Refused("previous_response_id names no response of this episode")
    asked = fields.get("input")
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else _entries(asked, "input")
    messages = [*before, *_of_items(items)]
    first = [{"role": "system", "content": fields["instructions"]}] if "instructions" in fields else []
    tools = _entries(fields.get("tools", []), "tools")
    if any(tool.get("type") != "function" for tool in tools):
        raise Refused("tools that are no functions")
    chat = {
        "messages": first + messages, "model": fields.get("model"), "max_tokens": fields.get("max_output_tokens"),
        "stream": fields.get("stream"), "top_logprobs": fields.get("top_logprobs"),
        "tools": [_function(tool.get("name"), tool.get("description"), tool.get("parameters")) for tool in tools],
    }  # fmt: skip
    return replace(_requests.read(chat), ignored=ignored), messages


def _of_items(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items of a response's input as messages; calls join the assistant's message that they were made in."""
    messages: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            call = _called(item.get("call_id"), item.get("name"), item.get("arguments"))
            messages[-1] = {**messages[-1], "tool_calls": [*messages[-1].get("tool_calls", []), call]}
        elif kind == "function_call_output":
            messages.append({"role": "tool", "content": item.get("output")})
        elif kind not in THOUGHTS:
            raise Refused(f"an item of the kind {kind}")
    return messages


def _messages(body: Any, earlier: Earlier) -> tuple[Request, list[dict[str, Any]]]:
    fields, ignored = _requests.fields_of(body, MESSAGES_READ, MESSAGES_IGNORED)
    first = [{"role": "system", "content": fields["system"]}] if fields.get("system") else []
    tools = _entries(fields.get("tools", []), "tools")
    if any(tool.get("type", "custom") != "custom" for tool in tools):
        raise Refused("tools that run at the server")
    entries = _entries(fields.get("messages"), "messages")
    chat = {
        "messages": first + [each for message in entries for each in _of_blocks(message)], "model": fields.get("model"),
        "max_tokens": fields.get("max_tokens"), "stop": fields.get("stop_sequences"), "stream": fields.get("stream"),
        "tools": [_function(tool.get("name"), tool.get("description"), tool.get("input_schema")) for tool in tools],
    }  # fmt: skip
    return replace(_requests.read(chat), ignored=ignored), []


def _of_blocks(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A message in blocks as one of text with its calls, behind the replies of tools that it brings."""
    content = message.get("content")
    if isinstance(content, str):
        yield {"role": message.get("role"), "content": content}
        return
    blocks = [block for block in _entries(content, "a message's content") if block.get("type") not in THOUGHTS]
    calls = [_called(b.get("id"), b.get("name"), b.get("input")) for b in blocks if b.get("type") == "tool_use"]
    for block in blocks:
        if block.get("type") == "tool_result":
            yield {"role": "tool", "content": block.get("content")}
    rest = [block for block in blocks if block.get("type") not in ("tool_use", "tool_result")]
    if rest or calls or not blocks:
        yield {"role": message.get("role"), "content": rest, **({"tool_calls": calls} if calls else {})}


def _response(completion: Mapping[str, Any]) -> dict[str, Any]:
    [choice] = completion["choices"]
    message, usage, cut = choice["message"], completion["usage"], choice["finish_reason"] == "length"
    name = completion["id"]
    output: list[dict[str, Any]] = []
    if message["content"] or not message.get("tool_calls"):
        part: dict[str, Any] = {"type": "output_text", "text": message["content"] or "", "annotations": []}
        output.append(
            {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        )
    for call in message.get("tool_calls", []):
        head = {"id": f"fc_{name}_{call['id']}", "type": "function_call", "status": "completed", "call_id": call["id"]}
        output.append({**head, **call["function"]})
    return {
        "id": name, "object": "response", "created_at": 0, "model": completion["model"], "output": output, "error": None,
        "status": "incomplete" if cut else "completed", "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None, "metadata": {}, "parallel_tool_calls": True, "temperature": None, "top_p": None, "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }  # fmt: skip


def _response_events(completion: Mapping[str, Any], with_usage: bool) -> str:
    response = _response(completion)
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    told: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for place, item in enumerate(response["output"]):
        where = {"item_id": item["id"], "output_index": place}
        opened = {**item, "status": "in_progress", **({"content": []} if "content" in item else {"arguments": ""})}
        told.append({"type": "response.output_item.added", "output_index": place, "item": opened})
        if "content" in item:
            [part] = item["content"]
            within = {**where, "content_index": 0}
            told += [
                {"type": "response.content_part.added", **within, "part": {**part, "text": ""}},
                {"type": "response.output_text.delta", **within, "delta": part["text"], "logprobs": []},
                {"type": "response.output_text.done", **within, "text": part["text"], "logprobs": []},
                {"type": "response.content_part.done", **within, "part": part},
            ]
        else:
            arguments = {"name": item["name"], "arguments": item["arguments"]}
            told += [
                {"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]},
                {"type": "response.function_call_arguments.done", **where, **arguments},
            ]
        told.append({"type": "response.output_item.done", "output_index": place, "item": item})
    told.append({"type": f"response.{response['status']}", "response": response})
    return _sent({**event, "sequence_number": number} for number, event in enumerate(told))


def _message(completion: Mapping[str, Any]) -> dict[str, Any]:
    [choice] = completion["choices"]
    message, usage, stop = choice["message"], completion["usage"], choice["stop_reason"]
    content: list[dict[str, Any]] = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", []):
        function = call["function"]
        content.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}
        )
    reasons = {
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "stop": "end_turn" if stop is None else "stop_sequence",
    }
    return {
        "id": f"msg_{completion['id']}", "type": "message", "role": "assistant", "model": completion["model"], "content": content,
        "stop_reason": reasons[choice["finish_reason"]], "stop_sequence": stop,
        "usage": {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]},
    }  # fmt: skip


def _message_events(completion: Mapping[str, Any], with_usage: bool) -> str:
    response = _message(completion)
    begun = {**response, "content": [], "stop_reason": None, "stop_sequence": None}
    told: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for place, block in enumerate(response["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            written = json.dumps(block["input"], ensure_ascii=False)
            empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": written}
        told += [
            {"type": "content_block_start", "index": place, "content_block": empty},
            {"type": "content_block_delta", "index": place, "delta": delta},
            {"type": "content_block_stop", "index": place},
        ]
    ended = {"stop_reason": response["stop_reason"], "stop_sequence": response["stop_sequence"]}
    usage = {"output_tokens": response["usage"]["output_tokens"]}
    told += [{"type": "message_delta", "delta": ended, "usage": usage}, {"type": "message_stop"}]
    return _sent(told)


def _sent(events: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def _anthropic_error(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


DIALECTS = {
    "chat/completions": Dialect(_chat, dict, _requests.events, _openai_error),
    "responses": Dialect(_responses, _response, _response_events, _openai_error),
    "messages": Dialect(_messages, _message, _message_events, _anthropic_error),
}
"""Path below /v1/ → what is spoken there."""
