"""Types and bounds of settings, as a reader wants them."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipelines.contract.fields import ADDRESS

SIGNS = {annotated_types.Gt: ">", annotated_types.Ge: "≥", annotated_types.Lt: "<", annotated_types.Le: "≤"}


def table(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """The settings of a method or an environment by name: type, whether it must be given, default and bounds."""
    return {
        name: {
            "type": type_name(about.annotation),
            "required": about.is_required(),
            "default": None if about.is_required() else about.default,
            "bounds": bounds(about.annotation, about.metadata),
        }
        for name, about in model.model_fields.items()
    }


def line(name: str, about: dict[str, Any]) -> str:
    """A row of `table` as text.

    >>> line("side", {"type": "int", "required": False, "default": 4, "bounds": ["≥ 2"]})
    'setting side: int (≥ 2), default 4'
    """
    limits = f" ({', '.join(about['bounds'])})" if about["bounds"] else ""
    default = "to be set" if about["required"] else f"default {about['default']}"
    return f"setting {name}: {about['type']}{limits}, {default}"


def type_name(annotation: Any) -> str:
    """A type in words: choices by their values, unions with `or`; bounds are told by `bounds`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(parts[0])
    if origin is Literal:
        return " or ".join(repr(value) for value in parts)
    if origin in (Union, UnionType):
        return " or ".join(type_name(part) for part in parts)
    if origin is not None:
        return f"{origin.__name__}[{', '.join('...' if part is ... else type_name(part) for part in parts)}]"
    return "None" if annotation is NoneType else str(getattr(annotation, "__name__", annotation))


def bounds(annotation: Any, metadata: list[Any]) -> list[str]:
    """What a value must keep to: that of the field itself, and of each arm of a union."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return bounds(parts[0], [*metadata, *parts[1:]])
    things = "characters" if str in (annotation, *parts) and origin in (None, Union, UnionType) else "entries"
    own = [text for each in metadata for text in _told(each, things)]
    if origin in (Union, UnionType):
        own += [text for part in parts for text in bounds(part, [])]
    return own


def _told(about: Any, things: str) -> list[str]:
    if isinstance(about, FieldInfo):
        return [text for each in about.metadata for text in _told(each, things)]
    for kind, sign in SIGNS.items():
        if isinstance(about, kind):
            limit = getattr(about, kind.__name__.lower())
            return [f"{sign} {int(limit) if limit == int(limit) else limit}"]
    if isinstance(about, annotated_types.MinLen):
        return [f"at least {_count(about.min_length, things)}"]
    if isinstance(about, annotated_types.MaxLen):
        return [f"at most {_count(about.max_length, things)}"]
    pattern = getattr(about, "pattern", None)
    if pattern == ADDRESS:
        return ["an address such as `http://localhost:8000`"]
    return [] if pattern is None else [f"matches `{pattern}`"]


def _count(number: int, things: str) -> str:
    return f"{number} {things if number != 1 else {'characters': 'character', 'entries': 'entry'}[things]}"
