"""YAML as recipes are written in it: plain values only, each key once, everything bounded.

Read with PyYAML's own parser. On top of it: explicit tags, repeated keys, keys that are no text, aliases that
multiply, deep nesting and several documents are refused with their line; dates and base-60 numbers stay text
and `1e-5` is a number, as in YAML 1.2.
"""

from __future__ import annotations

import math
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from pipelines.base.errors import RecipeError

MOST_BYTES = 200_000
"""Of one file; the largest recipe in the repository has under 3,000."""
DEEPEST = 40
"""Levels of nesting, aliases followed."""
MOST_VALUES = 20_000
"""Values of one file, aliases followed."""
LONGEST_TEXT = 100_000
LARGEST_INTEGER = 2**63 - 1
TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's numbers and without tags; counts what it composes."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}

    def __init__(self, text: str, where: str) -> None:
        super().__init__(text)
        self.where, self.level = where, 0

    def refuse(self, node: Any, problem: str) -> RecipeError:
        """The error of one line."""
        return RecipeError(self.where, f"line {node.start_mark.line + 1}: {problem}")

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        if getattr(event, "tag", None) is not None:
            raise self.refuse(event, f"the tag {event.tag[:60]!r} is not read; write plain values.")
        self.level += 1
        if self.level > DEEPEST:
            raise self.refuse(event, f"nested deeper than {DEEPEST} levels; write it flatter.")
        node = super().compose_node(parent, index)  # type: ignore[no-untyped-call]
        self.level -= 1
        return node

    def construct_yaml_int(self, node: Any) -> int:
        text = self.construct_scalar(node)
        if len(text) > 40:
            raise self.refuse(node, f"a whole number of {len(text)} characters; nothing here takes one so large.")
        return super().construct_yaml_int(node)


for _name, _pattern, _first in (
    ("bool", "yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+|0o[0-7]+|0b[01]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(TAG + _name, re.compile(f"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor(TAG + "int", _Loader.construct_yaml_int)


def parse(text: str, where: str) -> Any:
    """The one document of a text as plain values; no two of them are the same object.

    Args:
        where: put in front of every error: the file, or `--set field`.

    Raises:
        RecipeError: not YAML, or YAML that recipes do not use; names the line.

    >>> parse("{a: 1e-5, b: [x, no], day: 2026-01-02}", "recipe")
    {'a': 1e-05, 'b': ['x', False], 'day': '2026-01-02'}
    """
    if len(text) > MOST_BYTES:
        raise RecipeError(where, f"{len(text)} characters; a recipe has at most {MOST_BYTES}.")
    try:
        loader = _Loader(text, where)
        node = loader.get_single_node()  # type: ignore[no-untyped-call]
        if node is None:
            return None
        _weigh(node, loader, {}, set())
        return _copy(loader.construct_document(node), where, "")  # type: ignore[no-untyped-call]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = f"{error.context or ''} {error.problem or ''}".strip()
        raise RecipeError(where, f"not readable as YAML: {line}{problem[:300]}.") from None
    except yaml.YAMLError as error:
        raise RecipeError(where, f"not readable as YAML: {str(error).splitlines()[0][:300]}.") from None


def load(path: Path) -> dict[str, Any]:
    """The fields of a YAML file.

    Raises:
        RecipeError: no such file, not a file, not UTF-8, not YAML, or no fields in it.
    """
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise RecipeError(path, "is a folder; give a YAML file.")
        if not stat.S_ISREG(kind):
            raise RecipeError(path, "is not a regular file; give a YAML file.")
        with path.open("rb") as handle:
            raw = handle.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise RecipeError(
            path, "no such file", "Name a file; `whetstone recipes` lists the recipes that come with the project."
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, RecipeError):
            raise
        raise RecipeError(
            f"{str(path)[:200]!r}", f"cannot be read ({getattr(error, 'strerror', None) or error})."
        ) from None
    if len(raw) > MOST_BYTES:
        raise RecipeError(path, f"over {MOST_BYTES} bytes; that is no recipe.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError(path, f"line {line}: not UTF-8 (byte {error.start})", "Save the file as UTF-8.") from None
    body = parse(text, str(path))
    if not isinstance(body, dict):
        raise RecipeError(path, "expected fields such as name, model and curate.")
    return body


def _weigh(node: Any, loader: _Loader, known: dict[int, tuple[int, int]], open_: set[int]) -> tuple[int, int]:
    """(values, levels) of a node with its aliases followed; each node is looked at once.

    The node that an alias refers to comes earlier in the text, so the recursion is never deeper than the text's own nesting.
    """
    if id(node) in known:
        return known[id(node)]
    if id(node) in open_:
        raise loader.refuse(node, "an alias that contains itself.")
    open_.add(id(node))
    children = []
    if isinstance(node, yaml.MappingNode):
        _check_keys(node, loader)
        children = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    counts = [_weigh(child, loader, known, open_) for child in children]
    values, levels = 1 + sum(n for n, _ in counts), 1 + max((deep for _, deep in counts), default=0)
    if values > MOST_VALUES:
        raise loader.refuse(node, f"over {MOST_VALUES} values, aliases counted each time they are used.")
    if levels > DEEPEST + 1:
        raise loader.refuse(node, f"nested deeper than {DEEPEST} levels, aliases followed; write it flatter.")
    open_.discard(id(node))
    known[id(node)] = values, levels
    return values, levels


def _check_keys(node: yaml.MappingNode, loader: _Loader) -> None:
    first: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise loader.refuse(key, "a list or a section cannot be a key.")
        shown = key.value[:60]
        if key.tag not in (TAG + "str", TAG + "merge") or not key.value.strip():
            raise loader.refuse(key, f"the key {shown!r} is no text; put it in quotes or give it a name.")
        if key.value in first:
            raise loader.refuse(key, f"{shown!r} is written twice; it is on line {first[key.value]} too. Keep one.")
        first[key.value] = key.start_mark.line + 1


def _copy(value: Any, where: str, field: str) -> Any:
    """The value without shared parts; numbers are finite and text can be written down again."""
    at = f"{where}: {field}" if field else where
    if isinstance(value, dict):
        return {_copy(k, where, field): _copy(v, where, f"{field}.{k}".lstrip(".")) for k, v in value.items()}
    if isinstance(value, list):
        return [_copy(v, where, f"{field}.{i}".lstrip(".")) for i, v in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise RecipeError(at, f"{value} is not a finite number.")
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise RecipeError(at, f"{value} is larger than 2**63 - 1.")
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise RecipeError(at, f"a text of {len(value)} characters; at most {LONGEST_TEXT} are read.")
        bad = re.search(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", value)
        if bad is not None:
            raise RecipeError(at, f"the text holds the character {bad.group()!a}, which cannot be used here.")
    return value
