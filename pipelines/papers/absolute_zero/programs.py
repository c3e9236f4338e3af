"""What a policy writes of programs, read, and what the sandbox says of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from pipelines.data import chat
from pipelines.sandbox.compare import equal
from pipelines.sandbox.inside import wire
from pipelines.sandbox.interface import Sandbox
from pipelines.sandbox.worker import Limits

NO_ERROR = "NoError"
LONGEST = 2000
"""Characters of an input or an output: a longer one is no task."""


class Unknown:
    """In the place of a result that there is none of."""


def blocks(text: str, name: str) -> list[str]:
    """What stands between the marks of a name, after any reasoning.

    >>> blocks("<think>```input\\n0\\n```</think> so ```input\\n1, 'a'\\n``` and ```input\\n2```", "input")
    ["1, 'a'", '2']
    """
    inside = re.findall(rf"```{name}[ \t]*\n(.*?)```", chat.after_thinking(text), re.DOTALL)
    return [block.strip() for block in inside if block.strip()]


def arguments(text: str) -> list[Any] | None:
    """The arguments of a call as values; None where they are anything but literals in their places.

    >>> arguments("1, ['a', (2.5, None)]"), arguments("x"), arguments("1) or f(2"), arguments("a=1")
    ([1, ['a', (2.5, None)]], None, None, None)
    """
    value = literal(f"({text}\n,)")
    return list(value) if isinstance(value, tuple) else None


def literal(text: str) -> Any:
    """The value of a Python literal, `Unknown` where the text is none."""
    if len(text) > LONGEST:
        return Unknown
    try:
        value = ast.literal_eval(text.strip())
        wire.encode(value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return Unknown
    return value


def _call(text: str, name: str) -> dict[str, Any]:
    return {"name": name, "args": [wire.encode(value) for value in arguments(text) or []], "kwargs": {}}


TEXT = "\n\ndef text_of_f_(*inputs):\n    return repr(f(*inputs))\n"
"""Behind a program: what it returns as text."""


def returned(worker: Sandbox, *, program: str, inputs: Sequence[str], limits: Limits) -> list[str] | None:
    """What a program returns for each input, as text of a literal; None where it does not, or not twice the same."""
    texts: list[str] = []
    with worker.run({"mode": "functions", "source": program + TEXT}, limits) as running:
        if "ready" not in running.ask(None):
            return None
        for text in inputs:
            replies = [running.ask(_call(text, "f")) for _ in range(2)]
            shown = running.ask(_call(text, "text_of_f_")).get("value")
            expected = literal(shown) if isinstance(shown, str) else Unknown
            if expected is Unknown or not all("value" in reply for reply in replies):
                return None
            if not all(equal(wire.encode(expected), reply["value"]) for reply in replies):
                return None
            texts.append(str(shown))
    return texts


def raised(worker: Sandbox, *, program: str, inputs: Sequence[str], limits: Limits) -> list[str] | None:
    """The exception that a program ends in for each input, or `NO_ERROR`; None where it has no f, says raise, or ends in two ways."""
    if not re.search(r"^def f\(", program, re.MULTILINE) or "raise" in program:
        return None
    names: list[str] = []
    with worker.run({"mode": "functions", "source": program}, limits) as running:
        if "ready" not in running.ask(None):
            return None
        for text in inputs:
            replies = [running.ask(_call(text, "f")) for _ in range(2)]
            ends = {str(reply.get("error", NO_ERROR)) for reply in replies}
            if len(ends) > 1 or any("gone" in reply for reply in replies):
                return None
            names += ends
    return names


def agrees(worker: Sandbox, *, program: str, inputs: Sequence[str], values: Sequence[Any], limits: Limits) -> bool:
    """Whether a program returns the expected value for every input."""
    with worker.run({"mode": "functions", "source": program}, limits) as running:
        if "ready" not in running.ask(None):
            return False
        for text, expected in zip(inputs, values, strict=True):
            reply = running.ask(_call(text, "f"))
            if "value" not in reply or not equal(expected, reply["value"]):
                return False
    return True
