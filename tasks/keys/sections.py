"""The classes that check a recipe's sections, and which of a section's settings a key holds.

A key holds every setting that differs from the default which the field had when it was added (`first_defaults.json`). A new field
whose value is its default is thus in no key, and a default that changes later is in the key of every stage that reads the field.
Nothing is lost: a field has one first default, so two values of a field never look alike, and code that reads a new field is in
`source`. The entries are added by `make docs` and never edited; one whose class or field is renamed keeps its value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from pipelines.contract.model_settings import Model
from pipelines.recipe.read import Recipe
from pipelines.recipe.resolve import changes_result, plain
from pipelines.recipe.stage_kind import core_kinds

RECORD = Path(__file__).with_name("first_defaults.json")


def inner(cls: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Classes of settings among the types of a class's fields."""
    for field in cls.model_fields.values():
        yield from _classes_of(field.annotation)


def _classes_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _classes_of(part)


@cache
def sections() -> tuple[type[BaseModel], ...]:
    """Every class of a recipe, of its stages and of what these contain."""
    classes: dict[type[BaseModel], None] = {}
    waiting: list[type[BaseModel]] = [Recipe, Model, *(kind.settings for kind in core_kinds().values())]
    while waiting:
        cls = waiting.pop(0)
        if cls not in classes:
            classes[cls] = None
            waiting += inner(cls)
    return tuple(classes)


@cache
def names_in(module: str) -> frozenset[str]:
    """The classes of settings that a module defines, their base classes among them."""
    bases = {base for cls in sections() for base in cls.__mro__ if issubclass(base, BaseModel)}
    return frozenset(base.__name__ for base in bases if base.__module__ == module)


def chosen(section: BaseModel, values: dict[str, Any]) -> dict[str, Any]:
    """Those of a section's resolved settings that differ from the first default of their field.

    Args:
        values: field → what the key is to hold of it; what is no field of the section stays.
    """
    fields = type(section).model_fields
    kept = {name: _chosen(getattr(section, name), value) if name in fields else value for name, value in values.items()}
    return {
        name: value for name, value in kept.items() if name not in fields or not _is_first(type(section), name, value)
    }


def _chosen(held: Any, value: Any) -> Any:
    if isinstance(held, BaseModel) and isinstance(value, dict):
        return chosen(held, value)
    if isinstance(held, list | tuple) and isinstance(value, list) and len(held) == len(value):
        return [_chosen(*each) for each in zip(held, value, strict=True)]
    if isinstance(held, dict) and isinstance(value, dict) and held.keys() == value.keys():
        return {name: _chosen(held[name], each) for name, each in value.items()}
    return value


def _is_first(cls: type[BaseModel], name: str, value: Any) -> bool:
    recorded = _recorded().get(_name(cls), {})
    if name not in recorded and cls.model_fields[name].is_required():
        return False
    first = recorded[name] if name in recorded else _default(cls, name)
    return bool(value == first) and isinstance(value, bool) == isinstance(first, bool)


def _name(cls: type[BaseModel]) -> str:
    return f"{cls.__module__}.{cls.__name__}"


@cache
def _recorded() -> dict[str, dict[str, Any]]:
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def _default(cls: type[BaseModel], name: str) -> Any:
    """Today's default of a field, as keys write values."""
    value = cls.model_fields[name].get_default(call_default_factory=True)
    return _chosen(value, plain(value))


def first_defaults() -> dict[str, dict[str, Any]]:
    """Class → field → first default: the recorded ones, and today's of the fields that are new; fields that are gone are left out."""
    return {
        _name(cls): {
            name: _recorded().get(_name(cls), {}).get(name, _default(cls, name))
            for name, field in cls.model_fields.items()
            if changes_result(field) and not field.is_required()
        }
        for cls in sorted(sections(), key=_name)
        if cls is not Recipe
    }
