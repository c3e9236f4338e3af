"""Conversations as data sets write them: OpenAI's and TRL's messages, ShareGPT, transcripts; with tool calls, reasoning and marks."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from pipelines import tools
from pipelines.curate.cells import Cells, missing
from pipelines.curate.offered import without_filled
from pipelines.curate.values import RowError, kind, normalise, parse_json, plain, text_of
from pipelines.data.chat import THINK_END
from pipelines.data.control import thought_first
from pipelines.data.records import Message

ROLES = ("system", "user", "assistant", "tool")
ALIASES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "function_call": "assistant", "tool_call": "assistant", "function": "tool", "function_response": "tool",
    "tool_response": "tool", "observation": "tool", "ipython": "tool", "developer": "system",
}  # fmt: skip
"""What other conventions call the roles: ShareGPT, LLaMA-Factory, Gemini, OpenAI's older and newer names."""
CALL_ROLES = ("function_call", "tool_call")
"""Roles of messages whose text is a call's JSON."""
SPEAKERS, CONTENTS = ("role", "from"), ("content", "value")
REASONING = ("reasoning_content", "thinking", "reasoning", "thought")
"""Keys of an assistant's message for what it thought before its content."""
MARKS = ("train", "training", "weight")
_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant): ?")


@dataclass(slots=True)
class Talk:
    """Messages, and for each what its place says it counts in training (None where nothing)."""

    messages: list[Message] = field(default_factory=list)
    marks: list[float | None] = field(default_factory=list)

    def closing(self) -> Talk:
        """Take the assistant's messages off the end."""
        end = len(self.messages)
        while end and self.messages[end - 1]["role"] == "assistant":
            end -= 1
        taken = Talk(self.messages[end:], self.marks[end:])
        del self.messages[end:], self.marks[end:]
        return taken


def read(value: list[Any], column: str, cells: Cells) -> Talk:
    """The messages of a list of objects, texts normalised.

    Args:
        cells: of the row; learns which keys of the messages are in no record.

    Raises:
        RowError: what is none, or holds what is no text.
    """
    if not value:
        raise RowError(column, "an empty list of messages")
    talk = Talk()
    for number, entry in enumerate(value, 1):
        message = _message(entry, number, column, cells)
        talk.messages.append(message)
        talk.marks.append(_mark(entry, number) if message["role"] == "assistant" else None)
    return talk


def from_json(value: Any) -> Any:
    """The messages of a text that is JSON of a list of them, as tables hold it; any other value as it is.

    >>> from_json('[{"role": "user", "content": "Hi."}]'), from_json("[1]")
    ([{'role': 'user', 'content': 'Hi.'}], '[1]')
    """
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        listed = parse_json(value)
    except RowError:
        return value
    is_talk = listed and all(isinstance(entry, dict) and not entry.keys().isdisjoint(SPEAKERS) for entry in listed)
    return listed if is_talk else value


def first_question(value: Any) -> str | None:
    """The user's first text in a list of messages, None where there is none."""
    value = from_json(value)
    for entry in value if isinstance(value, list) else ():
        speaker = next((entry[key] for key in SPEAKERS if key in entry), None) if isinstance(entry, dict) else None
        if isinstance(speaker, str) and ALIASES.get(speaker, speaker) == "user":
            text = next((entry[key] for key in CONTENTS if isinstance(entry.get(key), str)), None)
            return None if text is None else normalise(text)
    return None


def transcript(text: str) -> list[Message]:
    r"""The messages of a dialogue that is one text, as HH-RLHF writes it; [] for any other text.

    >>> transcript("\n\nHuman: Hi.\n\nAssistant: Hello.")
    [{'role': 'user', 'content': 'Hi.'}, {'role': 'assistant', 'content': 'Hello.'}]
    """
    parts = _TURN.split(text)
    if len(parts) < 5 or parts[0].strip() or parts[1] != "Human":
        return []
    roles = {"Human": "user", "Assistant": "assistant"}
    return [
        {"role": roles[who], "content": normalise(text)} for who, text in zip(parts[1::2], parts[2::2], strict=True)
    ]


def history(value: Any) -> list[Message]:
    """Earlier turns as LLaMA-Factory writes them, pairs of a question and its answer; [] for anything else."""
    if not isinstance(value, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in value):
        return []
    if not all(isinstance(text, str) for turn in value for text in turn):
        return []
    roles = ("user", "assistant")
    return [
        {"role": role, "content": normalise(text)} for turn in value for role, text in zip(roles, turn, strict=True)
    ]


def _message(entry: Any, number: int, column: str, cells: Cells) -> Message:
    speaker = next((key for key in SPEAKERS if key in entry), None) if isinstance(entry, dict) else None
    if speaker is None:
        raise RowError(column, "not a list of messages with role and content", f"entry {number} is {kind(entry)}")
    named = entry[speaker]
    role = ALIASES.get(named, named) if isinstance(named, str) else named
    if role not in ROLES:
        raise RowError(column, "unknown role", f"message {number}: {str(named)[:40]!r}, known: {', '.join(ROLES)}")
    key = next((key for key in CONTENTS if not missing(entry.get(key))), None)
    used = {speaker, key, *(MARKS if role == "assistant" else ())}
    called = [entry[name] for name in ("tool_calls", "function_call") if not missing(entry.get(name))]
    thought = _reasoning(entry, number, column) if role == "assistant" else ""
    if role == "assistant":
        used |= {"tool_calls", "function_call", *REASONING}
    elif called:
        raise RowError(column, "a tool call that is not the assistant's", f"message {number}")
    if key is None and not called and not thought:
        key = next((each for each in CONTENTS if each in entry), None)
        content = _content(entry[key] if key else None, number, column)
    else:
        content = _content(entry[key], number, column) if key else ""
    if named in CALL_ROLES:
        content = "\n".join(_calls(parse_json(content, column), number, column, cells))
    calls = [text for value in called for text in _calls(value, number, column, cells)]
    content = "\n".join([content, *calls]).lstrip("\n") if calls else content
    cells.drop(column, (str(name) for name, value in entry.items() if name not in used and not missing(value)))
    return {"role": role, "content": normalise(_with_reasoning(thought, content, number, column))}


def _reasoning(entry: dict[str, Any], number: int, column: str) -> str:
    """What an assistant's message says that it thought, empty where it says nothing."""
    thoughts = {normalise(_content(entry[key], number, column)) for key in REASONING if not missing(entry.get(key))}
    if len(thoughts - {""}) > 1:
        raise RowError(column, "two texts of reasoning in one message", f"message {number}")
    return next(iter(thoughts - {""}), "")


def _with_reasoning(thought: str, content: str, number: int, column: str) -> str:
    """The message with its reasoning in front, in the tags that chat templates of reasoning models read."""
    if not thought:
        return content
    before, end, _ = content.partition(THINK_END)
    if end and thought in before:
        return content
    if end:
        raise RowError(column, "two texts of reasoning in one message", f"message {number}")
    return thought_first(thought, content)


def _mark(entry: dict[str, Any], number: int) -> float | None:
    """What a message of the assistant's counts: `train` or `training` (true or false, as axolotl reads them), or `weight` (a number, as
    OpenAI's fine-tuning reads it)."""
    for name in ("train", "training"):
        value = entry.get(name)
        if value is not None:
            if not isinstance(value, bool):
                raise RowError(name, "not true or false", f"message {number}: it is {kind(value)}")
            return float(value)
    value = entry.get("weight")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise RowError("weight", "not a number from 0", f"message {number}: it is {kind(value)}")
    return float(value)


def _calls(value: Any, number: int, column: str, cells: Cells) -> list[str]:
    """Tool calls as objects (OpenAI's form) as the text that chat templates write."""
    texts = []
    for call in value if isinstance(value, list) else [value]:
        call = parse_json(call, column) if isinstance(call, str) else call
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RowError(column, "a tool call without a function's name", f"message {number}")
        arguments_key = next(
            (name for name in ("arguments", "parameters") if not missing(function.get(name))), "arguments"
        )
        arguments = function.get(arguments_key) or {}
        arguments = parse_json(arguments, column) if isinstance(arguments, str) else plain(arguments, column)
        if not isinstance(arguments, dict):
            raise RowError(column, "a tool call whose arguments are no object", f"message {number}")
        known = {"name", arguments_key, "function", "type"}
        extra = {*call, *function} - known
        cells.drop(
            f"{column}.tool_calls", (k for k in extra if not missing(call.get(k)) or not missing(function.get(k)))
        )
        texts.append(tools.call_text(function["name"], without_filled(function["name"], arguments, cells)))
    return texts


def call_texts(answer: str) -> str | None:
    """Calls that are a JSON list of objects with name and arguments as the text that chat templates write; None for any other text.

    >>> call_texts('[{"name": "f", "arguments": {}}]')
    '<tool_call>\\n{"name": "f", "arguments": {}}\\n</tool_call>'
    """
    try:
        calls = json.loads(answer) if answer.lstrip().startswith("[") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(calls, list) or not calls or not all(is_call(call) for call in calls):
        return None
    return "\n".join(tools.call_text(call["name"], call["arguments"]) for call in calls)


def is_call(value: Any) -> bool:
    """Whether a value is a call: an object with a name and arguments.

    >>> is_call({"name": "f", "arguments": {}}), is_call({"name": "Ann"})
    (True, False)
    """
    return isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("arguments"), dict)


def _content(content: Any, number: int, column: str) -> str:
    """A message's text; parts of text are joined as chat templates do, with nothing between them."""
    if content is None:
        raise RowError(column, "a message without content", f"message {number}")
    if not isinstance(content, list):
        return text_of(content, column)
    texts = []
    for part in content:
        if isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
            texts.append(text_of(part["text"], column))
        elif isinstance(part, str):
            texts.append(text_of(part, column))
        else:
            what = part.get("type") if isinstance(part, dict) else kind(part)
            raise RowError(column, "a content part that is not text", f"message {number}: {str(what)[:40]}")
    return "".join(texts)


def text_of_answer(value: Any, column: str, cells: Cells) -> str:
    """A text, or that of a list with one message, the assistant's.

    Raises:
        RowError: something else, or several messages.
    """
    value = from_json(value)
    if not isinstance(value, list):
        return text_of(value, column)
    messages = read(value, column, cells).messages
    if messages[-1]["role"] != "assistant":
        raise RowError(column, "its last message is not the assistant's")
    if len(messages) > 1:
        raise RowError(column, "several messages where one answer is meant", "the earlier ones belong into the prompt")
    return messages[-1]["content"]
