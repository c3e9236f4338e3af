"""The blocks of an answer that may call tools, in order (ToolRL's format reward; qiancheng0/ToolRL, verl/utils/reward_score/rlla.py).

The answer is what the verifier `tool_calls` reads. Where it has calls, a completion must be `<think>...</think>`, and from the next line
on `<tool_call>`, the calls and `</tool_call>`, each on lines of their own; where it is text or an empty list, `<think>...</think>` and from
the next line on `<response>...</response>`. With `info["response"]` true an answer with calls has a response after them too. Each tag of
the calls and the response that are wanted stands in the completion once. What the blocks hold is not read here.
"""

from __future__ import annotations

from typing import Any

from pipelines.verifiers.tool_calls import CLOSE, OPEN, NoCalls, wanted_calls
from pipelines.verifiers.verdict import Verdict, correct_or_incorrect

THINK, END = "<think>", "</think>\n"
RESPONSE, RESPONSE_END = "<response>", "</response>"


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    r"""Whether the completion has the blocks that its answer asks for.

    >>> call = '{"name": "f", "arguments": {}}'
    >>> verify(f"<think>a</think>\n<tool_call>\n{call}\n</tool_call>", f"[{call}]", {}).score
    1.0
    >>> verify("<think>a</think>\n<response>b</response>", f"[{call}]", {}).score
    0.0
    """
    called = _calls(answer)
    answered = not called or bool(info.get("response"))
    tags = [*((OPEN, CLOSE) if called else ()), *((RESPONSE, RESPONSE_END) if answered else ())]
    head, fits = completion.strip(), all(completion.count(tag) == 1 for tag in tags)
    if answered:
        head, _, rest = head.partition(RESPONSE)
        fits = fits and rest.endswith(RESPONSE_END)
        if called:
            fits, head = fits and head.endswith("\n"), head[:-1]
    if called:
        head, _, rest = head.partition(OPEN)
        fits = fits and rest.startswith("\n") and rest[1:].endswith("\n" + CLOSE)
    return correct_or_incorrect(fits and head.startswith(THINK) and head[len(THINK) :].endswith(END))


def open_ended(answer: str, info: dict[str, Any]) -> bool:
    """True: only a form is asked for."""
    return True


def gold(answer: str, info: dict[str, Any]) -> str:
    """A text that must be correct."""
    blocks = [f"{OPEN}\n{answer}\n{CLOSE}"] if _calls(answer) else []
    if not blocks or info.get("response"):
        blocks.append(f"{RESPONSE}{RESPONSE_END}")
    return THINK + END + "\n".join(blocks)


def _calls(answer: str) -> bool:
    """Whether the answer is a list with calls."""
    try:
        return bool(wanted_calls(answer))
    except NoCalls:
        return False
