"""docs/settings.md: every field of a recipe with type, bounds, default and explanation, read from the classes that check it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from flows.cli import setting_types
from pipelines.contract.model_settings import Model
from pipelines.diffusion import kinds as diffusion
from pipelines.latent import kinds as latent
from pipelines.recipe.json_schema import explanations
from pipelines.recipe.read import Recipe
from pipelines.recipe.resolve import changes_result
from pipelines.recipe.launch import Launch
from pipelines.recipe.settings import Gate, Notify, Tracking
from pipelines.recipe.stage_kind import core_kinds
from scripts.docs import tables
from tasks.keys.sections import inner

INTRODUCTION = """# Settings

Generated from the code by `make docs`; do not edit.

Every field of a recipe. A field marked "not in the key" cannot change a result: changing it reruns nothing. The settings of a method,
such as those of `advantage: {kind: grpo}`, are in [methods](methods.md). [Recipes](recipes.md) explains how sections, stages and
presets work together.
"""


def classes() -> dict[type[BaseModel], str]:
    """Every class of settings with its heading: sections and kinds of stages, each followed by what it contains."""
    tops: list[tuple[str, type[BaseModel]]] = [("recipe", Recipe), ("model", Model)]
    kinds = [*core_kinds().values(), diffusion.SFT, diffusion.RL, latent.RL]
    tops += [(kind.name, kind.settings) for kind in kinds]
    tops += [("tracking", Tracking), ("gate", Gate), ("notify", Notify), ("launch", Launch)]
    own = {cls for _, cls in tops}
    ordered: dict[type[BaseModel], str] = {}
    for name, top in tops:
        ordered[top] = name
        waiting = list(inner(top))
        while waiting:
            cls = waiting.pop(0)
            if cls not in ordered and cls not in own:
                ordered[cls] = cls.__name__
                waiting += inner(cls)
    return ordered


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        changed = value.model_dump(exclude_defaults=True)
        return f"`{changed}`" if changed else "its defaults"
    return f"`{value!r}`" if value == "" else f"`{value}`"


def _row(cls: type[BaseModel], name: str, text: str) -> str:
    field = cls.model_fields[name]
    limits = ", ".join(setting_types.bounds(field.annotation, field.metadata))
    default = _default(field.get_default(call_default_factory=True) if not field.is_required() else PydanticUndefined)
    if not changes_result(field):
        text = f"{text} (not in the key)".strip()
    cells = (f"`{name}`", f"`{setting_types.type_name(field.annotation)}`", limits, default, text)
    return tables.row(cells)


def markdown() -> str:
    """The text of the page."""
    lines = [INTRODUCTION]
    for cls, heading in classes().items():
        summary = (cls.__doc__ or "").strip().split("\n\n")[0]
        lines += [f"{'##' if heading.islower() else '###'} {heading}", "", " ".join(summary.split()), ""]
        lines += ["| field | type | bounds | default | what it is |", "|---|---|---|---|---|"]
        texts = explanations(cls)
        lines += [_row(cls, name, texts.get(name, "")) for name in cls.model_fields]
        lines.append("")
    return "\n".join(lines)
