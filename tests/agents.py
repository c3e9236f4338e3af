"""Agent programs for tests, as files, and their rows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from pipelines import environments

ASK = """
import json, os, sys, urllib.request

def ask(messages, **more):
    body = json.dumps({"model": "any", "messages": messages, **more}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]

task = sys.stdin.read()
"""
FOLLOWING = (
    ASK
    + """
plan = json.loads(task)
messages = plan["first"]
for added in [*plan["then"], None]:
    message = ask(messages, **plan.get("more", {}))["message"]
    messages = [*messages, message, *(added or [])]
print(message["content"])
"""
)
"""Says what its task lists: `first` messages, and those that it adds after each answer (`then`)."""
ADDING = (
    ASK
    + """
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}
messages = [{"role": "user", "content": task}]
while True:
    message = ask(messages, tools=[TOOL], temperature=0.5)["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        told = json.loads(call["function"]["arguments"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(sum(told.values()))})
print("the answer is")
print(message["content"])
"""
)
"""Adds for the policy until that answers."""


def program(folder: Path, text: str) -> list[str]:
    """The command that runs a program of this text."""
    path = folder / "program.py"
    path.write_text(text)
    return ["python", str(path)]


def tasks(folder: Path, *rows: dict[str, Any], name: str = "tasks") -> str:
    """A file of tasks."""
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows(folder: Path, text: str, *tasks_of: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    """What the environment makes of the tasks."""
    count = len(tasks_of)
    settings = {"command": program(folder, text), "tasks": tasks(folder, *tasks_of), **config}
    return list(itertools.islice(environments.problems("agent", count, 0, settings), 100 * count))
