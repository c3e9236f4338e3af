"""Tool calls by name, parameter and value (ToolRL, arXiv 2504.13958, section 3.2), scaled to [0, 1].

The answer is a JSON list of calls, `{"name": ..., "arguments": {...}}` (`parameters` will do). A completion holds calls in
`<tool_call>` tags, in a fenced block, or as bare JSON. For gold calls G and predicted ones P, the score is

    (|names of G and P| / |names of G or P| + sum over G of (shared keys / all keys + equal values)) / (1 + |G| + keys of G)

with names counted as often as they occur. Gold calls choose in their order, each the first of the best predicted calls of its name that
are left; one that fits none of them in a key or a value leaves them all to the others, as in the released code. Without gold calls, no call
is correct. The released reward is 6 times this, less 3, and the verifier `tool_format` (`presets: [toolrl]`).

With `possible_answer` in `info` the calls are judged by the rules of BFCL instead (`_allowed_calls.py`): 1 where they are the wanted ones
with allowed values, else 0. It holds the allowed values of each wanted call, and `functions` the schemas of all that were offered; an empty
list wants no call, and `any_call: true` any. `format: python` reads calls as BFCL's text format has them.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pipelines.verifiers._code import blocks
from pipelines.verifiers.in_process import answer_text
from pipelines.verifiers.json_schema import strict
from pipelines.verifiers.verdict import UNPARSABLE, Verdict, correct_or_incorrect

MOST_CALLS = 32
OPEN, CLOSE = "<tool_call>", "</tool_call>"
Call = tuple[str, dict[str, Any]]


class NoCalls(ValueError):
    """A text that holds no well-formed calls."""


def calls(text: str) -> list[Call]:
    """The calls in a text; an empty list where it has none and does not try to.

    Raises:
        NoCalls: what should be a call is none, or there are too many.

    >>> calls('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>')
    [('f', {'x': 1})]
    """
    if OPEN in text:
        parts = text.split(OPEN)[1:]
        if not all(CLOSE in part for part in parts):
            raise NoCalls("a call that is never closed")
        bodies = [part.partition(CLOSE)[0] for part in parts]
    else:
        fenced = [body for language, body in blocks(text) if language in ("", "json")]
        bare = answer_text(text)
        bodies = fenced[-1:] or ([bare] if bare[:1] in ("[", "{") else [])
    return _checked([entry for body in bodies for entry in _entries(body)])


def _entries(body: str) -> list[Any]:
    """One JSON value, or one a line."""
    try:
        values = [strict(body.strip())]
    except (ValueError, RecursionError):
        try:
            values = [strict(line) for line in body.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise NoCalls("a call that is no JSON") from None
    return [entry for value in values for entry in (value if isinstance(value, list) else [value])]


def _checked(entries: list[Any]) -> list[Call]:
    checked: list[Call] = []
    if len(entries) > MOST_CALLS:
        raise NoCalls(f"over {MOST_CALLS} calls")
    for entry in entries:
        if not isinstance(entry, dict):
            raise NoCalls("a call that is no object")
        inner = entry.get("function", entry)
        if not isinstance(inner, dict):
            raise NoCalls("a function that is no object")
        arguments = inner.get("arguments", inner.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = strict(arguments)
            except (ValueError, RecursionError):
                raise NoCalls("arguments that are no JSON") from None
        if not isinstance(inner.get("name"), str) or not isinstance(arguments, dict):
            raise NoCalls("a call without name or arguments")
        checked.append((inner["name"], arguments))
    return checked


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The share of names, parameters and values that match; correct where all do and nothing is added.

    Raises:
        NoCalls: the answer is no list of calls.
        KeyError: `possible_answer` names a function or a type that is unknown.
    """
    if "possible_answer" in info:
        return _allowed(completion, info)
    expected = wanted_calls(answer)
    try:
        predicted = calls(completion)
    except NoCalls:
        return UNPARSABLE
    if not expected:
        return Verdict(float(not predicted), "incorrect" if predicted else "correct")
    if not predicted:
        return Verdict(0.0, "unparsable")
    names, other_names = Counter(name for name, _ in expected), Counter(name for name, _ in predicted)
    name_share = (names & other_names).total() / (names | other_names).total()
    key_share, value_count = _matched(expected, predicted)
    most = 1 + len(expected) + sum(len(arguments) for _, arguments in expected)
    score = (name_share + key_share + value_count) / most
    parts = {"names": name_share, "parameters": key_share / len(expected), "values": float(value_count)}
    exact = score > 1 - 1e-9 and len(predicted) == len(expected)
    return Verdict(1.0 if exact else min(score, 1 - 1e-6), "correct" if exact else "incorrect", parts)


def _allowed(completion: str, info: dict[str, Any]) -> Verdict:
    """By BFCL's rules; a text that cannot be read has no calls."""
    from pipelines.verifiers._allowed_calls import match, python_calls

    wanted = info["possible_answer"]
    predicted: list[Call] | None
    try:
        predicted = python_calls(completion) if info.get("format") == "python" else calls(completion)
    except ValueError:
        predicted = None
    if not wanted:
        return correct_or_incorrect(bool(predicted) is bool(info.get("any_call")))
    if predicted is None:
        return UNPARSABLE
    return correct_or_incorrect(match(info["functions"], predicted, wanted))


def wanted_calls(answer: str) -> list[Call]:
    """The calls of a record's answer.

    Raises:
        NoCalls: it is no list of calls.
    """
    return _checked(_entries(answer))


def open_ended(answer: str, info: dict[str, Any]) -> bool:
    """Where no call is wanted, any text without one is correct."""
    return not wanted_calls(answer)


def _matched(expected: list[Call], predicted: list[Call]) -> tuple[float, int]:
    """Shares of keys and counts of values, every gold call with the best call of its name that is left and has anything of it."""
    left = list(predicted)
    key_share, value_count = 0.0, 0
    for name, arguments in expected:
        best, best_keys, best_values = None, 0.0, 0
        for at, (other_name, other) in enumerate(left):
            if other_name != name:
                continue
            keys = arguments.keys() | other.keys()
            shared = arguments.keys() & other.keys()
            share = len(shared) / len(keys) if keys else 1.0
            equal = sum(same(arguments[key], other[key]) for key in shared)
            if share + equal > best_keys + best_values:
                best, best_keys, best_values = at, share, equal
        if best is not None:
            del left[best]  # by its place: 1 == True, so remove() could take another call
            key_share += best_keys
            value_count += best_values
    return key_share, value_count


def same(value: Any, other: Any) -> bool:
    """Equal JSON values; 1 equals 1.0, and neither equals true.

    >>> same([1, {"a": 2.0}], [1.0, {"a": 2}]), same(1, True)
    (True, False)
    """
    return _typed(value) == _typed(other)


def _typed(value: Any) -> str:
    def plain(item: Any) -> Any:
        if isinstance(item, float) and item.is_integer():
            return int(item)
        if isinstance(item, list):
            return [plain(entry) for entry in item]
        return {key: plain(entry) for key, entry in item.items()} if isinstance(item, dict) else item

    return json.dumps(plain(value), sort_keys=True)
