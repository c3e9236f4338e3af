"""The fields of a section that can change a result."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def resolve(section: BaseModel) -> dict[str, Any]:
    """The fields of a section that can change a result, as plain values."""
    fields: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("changes_result") is False:
            continue
        fields[name] = _plain(getattr(section, name))
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return resolve(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value
