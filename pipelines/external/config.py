"""Configurations in a trainer's own form: placeholders, dotted fields, and TOML, which Python reads and does not write."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.base.files import texts

PLACEHOLDERS = {
    "model": "folder of the model that is trained",
    "train_file": "Parquet file with the rows of `split`",
    "val_file": "Parquet file with the rows of `heldout`",
    "reward_file": "Python file whose `compute_score` calls the verifiers",
    "output": "folder for checkpoints, metrics and the model; it stays between attempts",
    "folder": "folder with the two data files, the reward file and the configuration",
    "config": "the configuration with its placeholders replaced",
    "python": "the Python of the trainer's environment",
    "seed": "the stage's seed",
    "attempt": "1 at first, one more with each start",
    "checkpoint": "the newest checkpoint (export only)",
    "export": "folder that `export` fills (export only)",
}
"""Name → meaning."""
_BRACES = re.compile(r"\{\{|\}\}|(?<!\$)\{([A-Za-z_]\w*)\}")


def names_in(value: Any) -> set[str]:
    """The placeholders in the texts of a value.

    >>> sorted(names_in({"a": ["{model}/x", "${hydra}", "{{not}}"], "b": 1}))
    ['model']
    """
    return {name for text in texts(value) for name in _BRACES.findall(text) if name}


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """The value with its placeholders replaced; `{{` and `}}` become braces, and a text that is one placeholder its value itself.

    >>> filled({"seed": "{seed}", "path": "{output}/x", "text": "{{a}} ${b}"}, {"seed": 3, "output": "/o"})
    {'seed': 3, 'path': '/o/x', 'text': '{a} ${b}'}
    """
    if isinstance(value, str):
        alone = re.fullmatch(r"\{([A-Za-z_]\w*)\}", value)
        if alone:
            return values[alone[1]]
        return _BRACES.sub(lambda match: str(values[match[1]]) if match[1] else match[0][0], value)
    if isinstance(value, Mapping):
        return {name: filled(inner, values) for name, inner in value.items()}
    return [filled(inner, values) for inner in value] if isinstance(value, list | tuple) else value


def check_names(field: str, value: Any, known: set[str] | None = None) -> None:
    """Every placeholder is known.

    Raises:
        RecipeError: one is not.
    """
    names = {*PLACEHOLDERS} if known is None else known
    for name in sorted(names_in(value) - names):
        fix = did_you_mean(name, names)
        raise RecipeError(field, f"there is no placeholder {{{name}}}", f"{fix} Write {{{{ and }}}} for braces.")


def of(setting: str | dict[str, Any] | None) -> tuple[dict[str, Any] | None, str | None]:
    """Fields or text of the setting `config`.

    Raises:
        RecipeError: as `read`.
    """
    return read(Path(setting).expanduser()) if isinstance(setting, str) else (copy.deepcopy(setting or {}), None)


def name_of(setting: str | dict[str, Any] | None) -> str:
    """What the file is called in the stage's folder."""
    return Path(setting).name if isinstance(setting, str) else "config.json"


def read(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """A trainer's file: its fields where it is YAML, TOML or JSON, else its text.

    Raises:
        RecipeError: it cannot be parsed, or holds something else than fields.
    """
    parsers: dict[str, Callable[[str], Any]] = {
        ".yaml": yaml.safe_load,
        ".yml": yaml.safe_load,
        ".json": json.loads,
        ".toml": tomllib.loads,
    }
    try:
        text = path.read_text()
        if path.suffix not in parsers:
            return None, text
        values = parsers[path.suffix](text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        first = " ".join(str(error).split())[:300]
        raise RecipeError("external.config", f"{path} cannot be read: {first}", "Correct the file.") from None
    if not isinstance(values, dict):
        raise RecipeError("external.config", f"{path} holds no fields", "Write it as the trainer reads it.")
    return values, None


def has(values: Mapping[str, Any], dotted: str) -> bool:
    """Whether a configuration has a field, as nested sections or under its dotted name."""
    return dotted in values or get(values, dotted, ...) is not ...


def get(values: Any, dotted: str, default: Any = None) -> Any:
    """A field of nested sections."""
    for name in dotted.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return default
        values = values[name]
    return values


def put(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a field of nested sections.

    Raises:
        RecipeError: a section on its way is something else.
    """
    *above, last = dotted.split(".")
    for name in above:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise RecipeError("external.config", f"{name} is no section, and {dotted} belongs there", "Make it one.")
        values = inner
    values[last] = value


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of each field that is no section.

    >>> list(leaves({"a": {"b": 1, "c": {}}, "d": [1]}))
    [('a.b', 1), ('a.c', {}), ('d', [1])]
    """
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def to_toml(values: Mapping[str, Any], above: str = "") -> str:
    """Fields as TOML: a table's own values first, then its tables and lists of tables.

    >>> print(to_toml({"a": 1, "b": {"c": "x", "d": [{"e": True}]}}).strip())
    a = 1
    <BLANKLINE>
    [b]
    c = "x"
    <BLANKLINE>
    [[b.d]]
    e = true
    """
    lines, tables = [], []
    for name, value in values.items():
        key = name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)
        if isinstance(value, Mapping):
            tables.append(f"\n[{above}{key}]\n{to_toml(value, f'{above}{key}.')}")
        elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            tables += [f"\n[[{above}{key}]]\n{to_toml(each, f'{above}{key}.')}" for each in value]
        elif value is not None:
            lines.append(f"{key} = {_scalar(value)}\n")
    return "".join([*lines, *tables])


def _scalar(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {_scalar(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    if isinstance(value, float) and value != value:
        return "nan"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else str(value)
