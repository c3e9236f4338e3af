"""What a chat template does with messages, found out once by rendering conversations whose texts are known.

Every fault of a template that would train or show a wrong text is caught here or by `unshown` after each rendering.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pipelines.base.errors import ModelError
from pipelines.base.project import python
from pipelines.data import marks, template_worker
from pipelines.data.control import THINK_END, THINK_START, after_thinking
from pipelines.data.records import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{% generation %}{{ message['content'] + eos_token }}"
    "{% endgeneration %}"
    "{% else %}<|{{ message['role'] }}|>{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Chat template of fresh models: one marker token per role, the end token after every assistant turn."""
TOOLS_TEMPLATE = PLAIN_TEMPLATE.replace(
    "{{ bos_token }}",
    "{{ bos_token }}{% if tools %}<|tools|>{% for tool in tools %}{{ tool['function']['name'] }}"
    "({{ tool['function']['parameters']['properties'] | join(', ') }}){% if not loop.last %}, {% endif %}{% endfor %}{% endif %}",
)
"""The same with the tools that a conversation offers in front, as `calculator(expression)`; a tool's reply has a marker of its own."""
WALL_S = 60.0
"""Until a template is given up on a machine that gives its process no processor."""
_USER, _SECOND, _SYSTEM, _ANSWER, _REPLY = (
    f"\u2042{name}\u2042" for name in ("user", "second", "system", "answer", "reply")
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "known_tool",
        "description": "Looks up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string", "description": "What."}}},
    },
}
_LONG = "A longer text, as data has it. " * 60


@dataclass(frozen=True, slots=True)
class Habits:
    """What a template does with messages."""

    system: bool
    """It shows a system message."""
    tool: bool
    """It shows the reply of a tool (role `tool`)."""
    tools: bool
    """It shows the tools that a conversation offers."""
    header: str
    """What it writes before an answer and not at the end of a prompt; empty for one with a generation prompt."""
    tail: str
    """What it writes after the last answer."""
    parts: bool = False
    """It reads a message's content as a list of parts alone, as those of models that see may."""


def _messages(*texts: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in texts]


def _conversations() -> dict[str, dict[str, Any]]:
    user, answer = ("user", _USER), ("assistant", _ANSWER)
    asked: dict[str, dict[str, Any]] = {
        "prompt": {"messages": _messages(user), "add_generation_prompt": True},
        "bare": {"messages": _messages(user), "add_generation_prompt": False},
        "answer": {"messages": _messages(user, answer), "add_generation_prompt": False},
        "system": {"messages": _messages(("system", _SYSTEM), user), "add_generation_prompt": True},
        "turns": {"messages": _messages(user, answer, ("user", _SECOND)), "add_generation_prompt": True},
        "reply": {"messages": _messages(user, answer, ("tool", _REPLY)), "add_generation_prompt": True},
        "tools": {"messages": _messages(user), "add_generation_prompt": True, "tools": [_TOOL]},
        "thinking": {
            "messages": _messages(user, ("assistant", f"{THINK_START}\nWhy.\n{THINK_END}\n\n{_ANSWER}")),
            "add_generation_prompt": False,
        },
        "long": {
            "messages": _messages(*[("user", _LONG), ("assistant", _LONG)] * 20, ("user", _LONG)),
            "add_generation_prompt": True,
        },
    }
    return {name: {"template": "tools" if name == "tools" else "plain", **each} for name, each in asked.items()}


def habits(tokenizer: PreTrainedTokenizerBase) -> Habits:
    """What the tokenizer's template does with messages; each template is tried once in a process.

    Raises:
        ModelError: the template shows no message, raises an error for the plainest conversation, or takes more time, memory or
            characters than the bounds of `template_worker`.
    """
    templates = (str(tokenizer.get_chat_template()), str(tokenizer.get_chat_template(tools=[_TOOL])))
    special = tuple(sorted((name, str(token)) for name, token in tokenizer.special_tokens_map.items()))
    return habits_of(*templates, special, str(tokenizer.name_or_path or ""))


@lru_cache(maxsize=256)
def habits_of(plain: str, tools: str, special: tuple[tuple[str, str], ...], name: str) -> Habits:
    """`habits` of a template, and of the one for conversations with tools, by their texts.

    Args:
        special: name and text of each special token, as templates read them.
        name: of the tokenizer, for messages.

    Raises:
        ModelError: as `habits`.
    """
    where = f"model.chat_template: the chat template{f' of {name}' if name else ''}"
    conversations = _conversations()
    request: dict[str, Any] = {
        "templates": {"plain": plain, "tools": tools},
        "conversations": list(conversations.values()),
        "variables": dict(special),
    }
    own = {plain, tools} <= {PLAIN_TEMPLATE, TOOLS_TEMPLATE}
    results = template_worker.render_all(**request) if own else _bounded(request, where)
    in_parts = not own and _USER not in results[0].get("text", "")
    if in_parts:
        request["conversations"] = [{**each, "messages": as_parts(each["messages"])} for each in conversations.values()]
        tried = _bounded(request, where)
        in_parts = _USER in tried[0].get("text", "")
        results = tried if in_parts else results
    texts = {key: result.get("text", "") for key, result in zip(conversations, results, strict=True)}
    if "error" in results[0]:
        raise ModelError(
            f"{where} cannot be used ({results[0]['error']})", fix="Correct its Jinja text, or give another one."
        )
    if _USER not in texts["prompt"]:
        raise ModelError(
            f"{where} shows a user's message nowhere: every prompt would be {texts['prompt'][:60]!r}",
            fix="Give a template that writes message['content'] of each message.",
        )
    return Habits(
        system=_SYSTEM in texts["system"] and _USER in texts["system"],
        tool=all(text in texts["reply"] for text in (_USER, _ANSWER, _REPLY)),
        tools=_TOOL["function"]["name"] in texts["tools"] and _USER in texts["tools"],  # type: ignore[index]
        header=_header(texts),
        tail=texts["answer"].partition(_ANSWER)[2],
        parts=in_parts,
    )


def as_parts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose contents are lists of parts, texts and images in their order, as chat templates of models that see read them.

    >>> as_parts([{"role": "user", "content": "Why?"}])
    [{'role': 'user', 'content': [{'type': 'text', 'text': 'Why?'}]}]
    """
    listed = []
    for message in messages:
        content: list[dict[str, str]] = []
        for piece, digest in marks.parts(message["content"]):
            content += [{"type": "text", "text": piece}] if piece or (digest is None and not content) else []
            content += [] if digest is None else [{"type": "image"}]
        listed.append({**message, "content": content})
    return listed


def _header(texts: Mapping[str, str]) -> str:
    """What stands before an answer and neither flag nor prompt brings; the start of a think block is the answer's own."""
    if texts["prompt"] != texts["bare"] or not texts["answer"].startswith(texts["prompt"]):
        return ""
    head, mark, _ = texts["answer"].removeprefix(texts["prompt"]).partition(_ANSWER)
    head = head.partition(THINK_START)[0]
    return head if mark and head.strip() else ""


def _bounded(request: dict[str, Any], where: str) -> list[dict[str, str]]:
    """`render_all` in a process of its own.

    Raises:
        ModelError: it took too long, too much memory, or ended.
    """
    command = python("pipelines.data.template_worker")
    try:
        ended = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=WALL_S)
    except subprocess.TimeoutExpired:
        raise ModelError(f"{where} was not done within {WALL_S:.0f} s", fix="Give one that ends.") from None
    if ended.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise ModelError(
            f"{where} does not end: short conversations took over {template_worker.CPU_S} s",
            fix="Give one without such loops.",
        )
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1][:200]
        raise ModelError(f"{where} ended the process that tried it ({last})", fix="Correct its Jinja text.") from None
    if isinstance(answer, str):
        raise ModelError(f"{where} cannot be used: {answer}", fix="Give one that writes the messages once.")
    return list(answer)


def unshown(text: str, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> str | None:
    """What a rendered text lacks of a conversation, in words; None where everything is there.

    Templates may strip and escape (`| trim`, `| tojson`), take out the switches `/think` and `/no_think`, and leave out the
    reasoning of earlier answers.

    >>> unshown("<user>2 + 2?", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}], None)
    'message 1 (system)'
    """
    for number, message in enumerate(messages, 1):
        content = message["content"]
        if not _shows(text, after_thinking(content) if message["role"] == "assistant" else content):
            return f"message {number} ({message['role']})"
    for tool in tools or ():
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and not _shows(text, name):
            return f"the tool {name!r}"
    return None


def _shows(text: str, content: str) -> bool:
    if marks.PLACE in content:  # a template may put something else around an image than there was
        return all(digest in text for digest in marks.marked(content)) and all(
            _shows(text, piece) for piece, _ in marks.parts(content)
        )
    content = content.strip()
    if content in text or json.dumps(content, ensure_ascii=False)[1:-1] in text:
        return True
    lines = content.replace("/no_think", "").replace("/think", "").splitlines()
    return all(line.strip() in text for line in lines)
