"""What every setting obeys, of sections and of methods, and the kinds of text that several of them take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from pipelines.base.plugins import is_reference
from pipelines.base.user_functions import FUNCTION

LARGEST = 10**12
"""No number in a recipe is larger, seeds apart."""
LARGEST_SEED = 2**63 - 1
"""What torch's generators take."""


def _line(value: str) -> str:
    if not value.strip():
        raise ValueError("an empty text; leave the field out, or give it a value")
    if re.search(r"[\x00-\x1f\x7f]", value):
        raise ValueError("a text of one line, without control characters, is wanted")
    return value


def _label(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}", value):
        raise ValueError(
            "a name starts with a letter or digit and has letters, digits, '.', '_', '+' and '-' only, at most 120"
        )
    return value


def _part(value: str) -> str:
    return value if is_reference(value) else _label(value)


def _day(value: Any) -> str:
    return str(value if isinstance(value, date) else date.fromisoformat(str(value)))


Line = Annotated[str, Field(max_length=4096), AfterValidator(_line)]
"""Text of one line that is not empty: paths, names of other people's things."""
Label = Annotated[str, AfterValidator(_label)]
"""A name that may become part of a file's name: splits, benchmarks."""
PartName = Annotated[str, AfterValidator(_part)]
"""What a verifier or environment is called, or where it is: `FILE.py` or `MODULE:NAME`."""
Function = Annotated[Line, Field(pattern=FUNCTION)]
"""A function of the user's, by where it is: `FILE.py:NAME` or `package.module:NAME`."""
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
Day = Annotated[str, BeforeValidator(_day)]
"""`2025-01-01`."""
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]


ADDRESS = r"^https?://([^\s/@]*@)?(\[[0-9a-fA-F:.]+\]|[^\s/:@\[\]]+)(:[0-9]{1,5})?([/?#]\S*)?$"
"""Of a server: user and password, which another check refuses; a name or a number; a port; and a path."""
FORMS = {
    FUNCTION: "write it as ./my_file.py:function or package.module:function",
    ADDRESS: "write an address such as http://localhost:8000",
    r"^[A-Za-z_]\w*$": "write the name of a variable, such as OPENAI_API_KEY",
}
"""Patterns of fields, in words."""


def message(entry: Mapping[str, Any]) -> str:
    """What one of pydantic's complaints says, without its own words around it."""
    if entry["type"] == "string_pattern_mismatch":
        return FORMS.get(entry["ctx"]["pattern"], str(entry["msg"]))
    return str(entry["ctx"]["error"] if entry["type"] == "value_error" else entry["msg"])


def place(entry: Mapping[str, Any]) -> list[str]:
    """Where the field of a complaint is, without the branches of unions that pydantic tried."""
    return [str(part) for part in entry["loc"] if not str(part).startswith(BRANCHES)]


BRANCHES = ("function-", "list[", "literal[", "constrained-", "[key]", "union[")


class Strict(BaseModel):
    """Base of sections and of methods' settings: unknown keys are errors, numbers are finite and no booleans."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        field = cls.model_fields.get(str(info.field_name))
        if field is not None and _numeric(field.annotation) and any(isinstance(v, bool) for v in values):
            raise ValueError("a number is wanted, not true or false")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _no_giants(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, int | float) and info.field_name != "seed" and abs(value) > LARGEST:
            raise ValueError(f"a number of at most {LARGEST:g} is wanted")
        return value


def _numeric(annotation: Any) -> bool:
    """Whether only numbers, or containers of numbers, are wanted."""
    kinds = _leaves(annotation)
    return bool(kinds & {int, float}) and bool not in kinds and Any not in kinds


def _leaves(annotation: Any) -> set[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _leaves(get_args(annotation)[0])
    if origin in (Union, UnionType, list, tuple):
        return {leaf for part in get_args(annotation) if part is not ... for leaf in _leaves(part)}
    if origin is dict:
        return _leaves(get_args(annotation)[1])
    return {annotation}


class Settings(Strict):
    """Base of every section of a recipe."""


def free(default: Any, **bounds: Any) -> Any:
    """A field that cannot change a stage's result."""
    return Field(default, json_schema_extra={"changes_result": False}, **bounds)
