"""Parts of a conversation written into its messages, for chat templates that have no place for them."""

from __future__ import annotations

import json
from typing import Any

from pipelines.data.control import THINK_END, thought_first
from pipelines.data.records import Message

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message that hold its reasoning."""


def with_reasoning(message: Message) -> Message:
    """A message with the reasoning that it has in a field of its own in front of its content."""
    reasoning = next((str(message[name]) for name in REASONING if message.get(name)), None)
    if reasoning is None or THINK_END in message["content"]:
        return {name: value for name, value in message.items() if name not in REASONING}
    return {"role": message["role"], "content": thought_first(reasoning.strip(), message["content"])}


def system_in_user(messages: list[Message]) -> list[Message] | None:
    """The conversation with its system message at the head of the first user message; None where there is none.

    >>> system_in_user([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}])
    [{'role': 'user', 'content': 'Be brief.\\n\\n2 + 2?'}]
    """
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return None
    first: Message = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]


def tool_in_user(messages: list[Message]) -> list[Message]:
    """The conversation with the replies of tools as user messages, in the tags that Qwen's template writes; replies in a row share one.

    >>> tool_in_user([{"role": "tool", "content": "42"}, {"role": "tool", "content": "7"}])
    [{'role': 'user', 'content': '<tool_response>\\n42\\n</tool_response>\\n<tool_response>\\n7\\n</tool_response>'}]
    """
    out: list[Message] = []
    for place, message in enumerate(messages):
        if message["role"] != "tool":
            out.append(message)
            continue
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        if place and messages[place - 1]["role"] == "tool":
            content = f"{out.pop()['content']}\n{content}"
        out.append({"role": "user", "content": content})
    return out


def tools_in_system(messages: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
    """The conversation with its tools in the system message, and how one is called.

    >>> tools_in_system([{"role": "user", "content": "2 + 2?"}], [{"name": "add"}])[0]["content"].splitlines()[2:6]
    ['These functions can be called:', '<tools>', '{"name": "add"}', '</tools>']
    """
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = (
        f"# Tools\n\nThese functions can be called:\n<tools>\n{listed}\n</tools>\n\nA call is a JSON object in tags:\n<tool_call>\n"
        '{"name": NAME, "arguments": {KEY: VALUE}}\n</tool_call>'
    )
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
    if system is None:
        return [{"role": "system", "content": text}, *messages]
    return [{"role": "system", "content": f"{system}\n\n{text}"}, *messages[1:]]
