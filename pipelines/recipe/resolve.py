"""The fields of a section that can change a result."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def changes_result(field: FieldInfo) -> bool:
    """Whether a field can change a result; those that are declared with `free()` cannot."""
    extra = field.json_schema_extra
    return not (isinstance(extra, dict) and extra.get("changes_result") is False)


def resolve(section: BaseModel) -> dict[str, Any]:
    """The fields of a section that can change a result, as plain values."""
    fields = type(section).model_fields
    return {name: plain(getattr(section, name)) for name, field in fields.items() if changes_result(field)}


def plain(value: Any) -> Any:
    """A setting's value as sections, lists and dicts of plain values."""
    if isinstance(value, BaseModel):
        return resolve(value)
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value
