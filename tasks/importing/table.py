"""What a table of another trainer's fields consists of, and a configuration that is read through one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipelines.base.errors import UserError

WANTED = {
    "number": "a number", "whole": "a whole number", "flag": "true or false", "text": "a text", "texts": "a list of texts",
    "numbers": "a list of numbers", "section": "a section of fields", "sections": "a list of sections", "any": "a value",
}  # fmt: skip
"""Kind of value → what an error asks for."""
RUNTIME = "how the run is started, watched, saved or made fast; it does not change what is computed"


@dataclass(frozen=True)
class Field:
    """A field of another trainer: what it is called there, and what it is here."""

    key: str
    """What the code that builds the recipe calls it."""
    kind: str = "any"
    """A key of `WANTED`."""
    to: str = ""
    """Our fields, separated by commas; `.optimizer` is one of the stage that trains. Empty: it has no counterpart."""
    default: Any = None
    """Theirs, where the field is left out."""
    note: str = ""
    """With a counterpart: what differs. Without: why there is none."""
    instead: str = ""
    """Without a counterpart: what to do."""
    copy: str = ""
    """A key of `COPIES`: turns their value into that of `to`, where that is all there is to it; otherwise the builder reads the field."""
    spelled: tuple[str, ...] = ()
    """Its names there, in the order of preference, where they are not `key`."""
    neutral: tuple[Any, ...] = ()
    """Values, beside the default, with which a field without a counterpart changes nothing."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its names in a configuration."""
        return self.spelled or (self.key,)

    def changes_nothing(self, value: Any) -> bool:
        """Whether a field without a counterpart has a value that changes nothing."""
        return any(
            value is each or (value == each and type(value) is type(each))
            for each in (None, self.default, *self.neutral)
        )


COPIES: dict[str, Callable[[Any], Any]] = {
    "same": lambda value: value,
    "float": float,
    "flag": bool,
    "from_zero": lambda value: max(0, value),
}
"""Names of conversions that look at one value alone."""


@cache
def tables(name: str) -> dict[str, Any]:
    """The tables of `NAME.yaml` beside this module: lists of fields by their names, and what else the file has."""
    body = yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8"))
    return {key: _fields(value) if isinstance(value, list) else value for key, value in body.items()}


def _fields(entries: Iterable[dict[str, Any]]) -> list[Field]:
    fields = []
    for entry in entries:
        attributes: dict[str, Any] = {
            key: tuple(value) if key in ("spelled", "neutral") else value
            for key, value in entry.items()
            if key != "names"
        }
        if "names" in entry:
            attributes = {"note": RUNTIME, **attributes}
            fields += [Field(name, **attributes) for name in entry["names"].split()]
        else:
            fields.append(Field(**attributes))
    return fields


def renamed(fields: Iterable[Field], spelled: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Field]:
    """The fields that another trainer has too, under its names (one, or a list of them) and with its defaults."""
    named = []
    for field in fields:
        if field.key in spelled:
            names = spelled[field.key]
            field = replace(field, spelled=(names,) if isinstance(names, str) else tuple(names))
            named.append(replace(field, default=defaults[field.key]) if field.key in defaults else field)
    return named


class Config:
    """The fields of a configuration, by the keys of its table.

    Args:
        values: name there → value.
        fields: the table.
        trainer: whose it is, for messages.
        processes: that it ran with; None: not known, 1 is taken.
        rows: of the data set, where they are known.
        row_tokens: mean tokens of a row, where they are known.

    Raises:
        UserError: a field is there under two of its names.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        fields: Iterable[Field],
        trainer: str,
        processes: int | None = None,
        rows: int | None = None,
        row_tokens: int | None = None,
    ) -> None:
        self.values, self.trainer, self.rows, self.row_tokens = dict(values), trainer, rows, row_tokens
        self.processes, self.knows_processes = processes or 1, processes is not None
        self.fields = {field.key: field for field in fields}
        self.key_of = {name: field.key for field in self.fields.values() for name in field.names}
        self.spelling: dict[str, str] = {}
        self.derived: dict[str, Any] = {}
        for name in self.values:
            key = self.key_of.get(name)
            if key is None:
                continue
            if key in self.spelling:
                raise UserError(
                    name, f"it says the same as {self.spelling[key]}, which is there too", "Give one of them."
                )
            self.spelling[key] = name

    def derive(self, values: Mapping[str, Any]) -> None:
        """Give fields another default, or a value in another form than the configuration has it."""
        self.derived |= values

    def name(self, key: str) -> str:
        """What the configuration calls a field, or would."""
        return self.spelling.get(key) or (self.fields[key].names[0] if key in self.fields else key)

    def has(self, key: str) -> bool:
        """Whether the configuration has the field, with a value."""
        return key in self.spelling and self.values[self.spelling[key]] is not None

    def take(self, key: str) -> Any:
        """The value of a field, or its default there; None where the table does not have it.

        Raises:
            UserError: the value is not of the field's kind.
        """
        field = self.fields.get(key)
        if key in self.derived and (field is None or field.kind == "any" or not self.has(key)):
            return self.derived[key]
        if field is None:
            return None
        if not self.has(key):
            return field.default
        return checked(self.values[self.spelling[key]], field.kind, self.name(key))

    def positive(self, key: str) -> int:
        """A whole number from 1.

        Raises:
            UserError: it is none.
        """
        value = self.take(key)
        if not isinstance(value, int) or value < 1:
            raise refused(self.name(key), "a whole number from 1", value)
        return value


def refused(name: str, wanted: str, value: Any) -> UserError:
    """The error of a value that cannot be read."""
    return UserError(name, f"{wanted} is wanted (got {str(value)[:80]!r})", "Correct it, or leave the field out.")


def checked(value: Any, kind: str, name: str) -> Any:
    """A value of a kind; numbers that are written as text become numbers, and a single value a list where one is wanted.

    Raises:
        UserError: it is not of that kind.

    >>> checked("1e-5", "number", "lr"), checked("a", "texts", "x"), checked("True", "flag", "x")
    (1e-05, ['a'], True)
    """
    if isinstance(value, str) and kind != "any" and re.search(r"\$[\w({]", value) and not re.search(r"\{[%{#]", value):
        raise UserError(
            name, f"its value {value[:80]!r} needs a shell or hydra", f"Give it after the file: {name}=VALUE."
        )
    if kind in ("texts", "numbers", "sections"):
        listed = value if isinstance(value, list) else [value]
        return [checked(each, kind[:-1], name) for each in listed]
    read = _READERS[kind](value)
    if read is None:
        raise refused(name, WANTED[kind], value)
    return read


def _number(value: Any) -> float | int | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def _integer(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None


def _flag(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "yes": True, "false": False, "no": False}.get(value.lower())
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None


_READERS: dict[str, Callable[[Any], Any]] = {
    "number": _number,
    "whole": _integer,
    "flag": _flag,
    "text": _text,
    "section": lambda value: value if isinstance(value, dict) else None,
    "any": lambda value: value,
}
