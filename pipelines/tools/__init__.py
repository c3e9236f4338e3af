"""Tools that the policy may call in an episode: a schema for the chat template, and a function behind it.

A tool is named in data by a spec: `calculator`, or a mapping with `kind` and settings, such as
`{kind: search, corpus: docs.jsonl}`. A file of this folder whose name is the kind defines `tools(settings)`, which makes the tools of
one spec (an MCP server brings several). Arguments come from the policy: a tool answers bad ones with `ToolError`, never with
anything else.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.data.marks import unnamed

KINDS = ("calculator", "crop", "function", "mcp_server", "python", "search")
"""Every kind of tool: a module of this package that defines `tools`."""
RUNS_CODE = ("function", "mcp_server")
"""Kinds whose spec names code that runs outside the sandbox: a recipe may ask for them, the rows of a file may not."""
MOST_REPLY = 4000
"""Characters of a reply that the policy is shown."""
Spec = str | Mapping[str, Any]


class Outcome(StrEnum):
    """What came of a tool call."""

    OK = "ok"
    MALFORMED = "malformed"
    """The text in the tags is no call."""
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    """The schema refuses them."""
    FAILED = "failed"
    """The tool said that it cannot do this."""
    TIMED_OUT = "timed_out"


class ToolError(Exception):
    """What the policy asked for cannot be done; the message is its observation."""


class ToolTimeout(ToolError):
    """The tool took longer than it may."""


class ToolUnavailable(Exception):
    """What is behind the tool is not there, whatever the policy asked for: the episode cannot be judged."""


@dataclass(frozen=True)
class Tool:
    """One function that the policy may call."""

    schema: dict[str, Any]
    """`{"type": "function", "function": {"name", "description", "parameters"}}`."""
    call: Callable[..., str]
    """Keyword arguments as the schema has them → the text of the reply.

    Raises:
        ToolError: with what the policy is to read.
        ToolUnavailable: the server behind it is gone.
    """
    waits: bool = False
    """A call waits for another process, so that calls of several episodes are worth running side by side."""
    shows_images: bool = False
    """Its replies name images; of other tools' replies no text is read as one."""

    @property
    def name(self) -> str:
        """As the policy calls it."""
        return str(self.schema["function"]["name"])


@dataclass(frozen=True)
class Call:
    """A call that was made."""

    name: str
    arguments: dict[str, Any]
    outcome: Outcome
    text: str
    """The reply, or what was wrong."""

    def body(self) -> dict[str, Any]:
        """For a trajectory."""
        return {"name": self.name, "arguments": self.arguments, "outcome": str(self.outcome), "text": self.text}


@dataclass
class Toolbox:
    """The tools of an episode, by name; it keeps nothing between calls, though a server behind a tool may."""

    tools: dict[str, Tool] = field(default_factory=dict)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Of all tools, as a chat template takes them."""
        return [tool.schema for tool in self.tools.values()]

    @property
    def waits(self) -> bool:
        """Whether a tool waits for another process."""
        return any(tool.waits for tool in self.tools.values())

    def call(self, name: str, arguments: dict[str, Any]) -> Call:
        """Make one call; whatever the policy did wrong comes back as its outcome.

        Raises:
            ToolUnavailable: what is behind the tool is not there.
        """
        tool = self.tools.get(name)
        if tool is None:
            known = ", ".join(self.tools) or "none"
            told = unnamed(f"error: no tool called {name[:60]!r}; there is {known}")
            return Call(name, arguments, Outcome.UNKNOWN_TOOL, told)
        refusal = _refusal(json.dumps(tool.schema["function"].get("parameters", {}), sort_keys=True), arguments)
        if refusal:
            return Call(name, arguments, Outcome.BAD_ARGUMENTS, unnamed(f"error: {refusal}"))
        try:
            reply = tool.call(**arguments)
            reply = reply if tool.shows_images else unnamed(reply)
        except ToolTimeout as error:
            return Call(name, arguments, Outcome.TIMED_OUT, unnamed(f"error: {error}"))
        except ToolError as error:
            return Call(name, arguments, Outcome.FAILED, unnamed(f"error: {error}"))
        return Call(name, arguments, Outcome.OK, reply[:MOST_REPLY])


@cache
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def _refusal(schema: str, arguments: dict[str, Any]) -> str:
    """Why a schema refuses arguments; empty where it does not."""
    from jsonschema.exceptions import best_match

    error = best_match(_validator(schema).iter_errors(arguments))
    if error is None:
        return ""
    where = ".".join(map(str, error.absolute_path))
    return f"{where + ': ' if where else ''}{error.message[:200]}"


def toolbox(specs: Sequence[Spec]) -> Toolbox:
    """The tools of several specs.

    Raises:
        RecipeError: no such kind, settings it does not take, or two tools of one name.
    """
    box = Toolbox()
    for spec in specs:
        for tool in _of_spec(json.dumps({"kind": spec} if isinstance(spec, str) else dict(spec), sort_keys=True)):
            if tool.name in box.tools:
                raise RecipeError("tools", f"two tools are called {tool.name!r}", "Leave one of them out.")
            box.tools[tool.name] = tool
    return box


@cache
def _of_spec(spec: str) -> list[Tool]:
    """The tools of one spec (JSON), made once in a process: servers and indices are kept."""
    settings = json.loads(spec)
    kind = settings.pop("kind", None)
    if kind not in KINDS:
        raise RecipeError("tools", f"no kind of tool called {kind!r}", did_you_mean(str(kind), KINDS))
    try:
        return list(importlib.import_module(f"pipelines.tools.{kind}").tools(**settings))
    except TypeError as error:
        raise RecipeError("tools", f"{kind} refuses its settings: {error}.") from None


def function_schema(name: str, description: str, **parameters: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function whose parameters are all required.

    >>> function_schema("f", "Does it.", x={"type": "string"})["function"]["parameters"]["required"]
    ['x']
    """
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": parameters,
                "required": list(parameters),
                "additionalProperties": False,
            },
        },
    }


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A call as chat templates write it.

    >>> call_text("f", {"x": 1})
    '<tool_call>\\n{"name": "f", "arguments": {"x": 1}}\\n</tool_call>'
    """
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def corpora_of(settings: Any) -> Iterator[str]:
    """Every corpus that settings name, at any depth.

    >>> list(corpora_of([{"tools": [{"kind": "search", "corpus": "a.jsonl"}]}, {"corpus": "b.txt"}]))
    ['a.jsonl', 'b.txt']
    """
    if isinstance(settings, dict):
        if isinstance(settings.get("corpus"), str):
            yield settings["corpus"]
        settings = list(settings.values())
    for inner in settings if isinstance(settings, list | tuple) else ():
        yield from corpora_of(inner)
