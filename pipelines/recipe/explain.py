"""What is wrong with a recipe's fields, in the recipe's words."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from pipelines.errors import did_you_mean
from pipelines.recipe import kinds
from pipelines.recipe.secrets import redact

FORMS = {
    r"^\w+(\.\w+)*:\w+$": "write it as package.module:function",
    r"^[\w.]+:\w+$": "write it as package.module:function",
    r"^https?://[^\s/]": "write an address such as http://localhost:8000",
    r"^[A-Za-z_]\w*$": "write the name of a variable, such as OPENAI_API_KEY",
}
"""Patterns of fields, in words."""


def shown(value: Any) -> str:
    """A value as a message shows it: short, and without secrets."""
    return cut(redact(repr(value)[:4000]))


def cut(text: str) -> str:
    """At most 80 characters."""
    return text if len(text) <= 80 else text[:77] + "..."


def explain(error: ValidationError, body: dict[str, Any], model: type[BaseModel], prefix: str = "") -> str:
    """pydantic's complaints in the recipe's words: field, value, rule, fix. At most twenty of them.

    Args:
        body: what was validated; a named stage's fields are called NAME.FIELD.
        model: the class that it was validated as.
        prefix: the section that it is.
    """
    entries = error.errors()
    lines = []
    for entry in entries[:20]:
        loc = [
            str(p)
            for p in entry["loc"]
            if not str(p).startswith(("function-", "list[", "literal[", "constrained-", "[key]"))
        ]
        stage = loc[1] if loc[:1] == ["stages"] and len(loc) > 1 else None
        shown_loc = loc[1:] if stage else [*([prefix] if prefix else []), *loc]
        where = cut(".".join(shown_loc)) or "recipe"
        if entry["type"] == "extra_forbidden":
            lines.append(f"{where}: no such field. {did_you_mean(loc[-1][:120], _known(loc[:-1], body, model))}")
        elif entry["type"] == "missing":
            lines.append(f"{where}: this field is required.")
        elif entry["type"] in ("model_type", "dict_type"):
            lines.append(f"{where}: expected a section with fields (got {shown(entry.get('input'))}).")
        else:
            value = entry.get("input")
            if entry["type"] == "string_pattern_mismatch":
                entry["msg"] = FORMS.get(entry["ctx"]["pattern"], entry["msg"])
            got = f" (got {shown(value)})" if isinstance(value, str | int | float | bool) or value is None else ""
            lines.append(f"{where}: {entry['msg'].removeprefix('Value error, ')}{got}.")
    if len(entries) > 20:
        lines.append(f"... and {len(entries) - 20} more.")
    return "\n".join(lines)


def _known(loc: list[str], body: dict[str, Any], model: type[BaseModel]) -> list[str]:
    """Names of the fields of the section at a place."""
    if loc[:1] == ["stages"] and len(loc) > 1:
        kind = kinds.every()[body["stages"][loc[1]]["kind"]]
        ports = ["kind", "seed", *kind.ports] if len(loc) == 2 else []
        return [*_fields_at(loc[2:], kind.settings), *ports]
    return _fields_at(loc, model)


def _fields_at(loc: list[str], root: type[BaseModel]) -> list[str]:
    model: Any = root
    for key in loc:
        if key.isdigit():
            continue
        if model is None:
            return []
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        model = _model_in(annotation)
    return [] if model is None else list(model.model_fields)


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        model = _model_in(argument)
        if model is not None:
            return model
    return None
