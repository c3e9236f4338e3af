"""Parts that a recipe names by where they are, without a table: `advantage: ./my_method.py:half`, `verifier: ./my_verifier.py`.

Only the recipe can say so: what it names becomes a plug-in, and rows of data find no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipelines.base import plugins
from pipelines.base.errors import UserError
from pipelines.recipe.slots import MONITORS, SLOTS
from pipelines.recipe.stage_kind import Node, kind_of, stage_kinds

ANYWHERE = {"verifier": "verifiers", "self_supervised": "curate.self_supervised"}
"""Fields that name a part wherever they stand in a stage's section → slot."""


def activate(sections: Mapping[str, tuple[str, Any]]) -> None:
    """Load what the sections of a recipe name by file or module.

    Args:
        sections: the stage's name → (its kind, its fields as the recipe has them).

    Raises:
        UserError: names the field; the file or module is not there, fails when it is imported, or has no such part.
    """
    for field, plugin in _plugins(sections):
        try:
            plugins.activate([plugin])
        except UserError as error:
            raise error.moved("plugins", field) from error


def activate_kinds(stages: Mapping[str, Any], named: list[str]) -> None:
    """Load the kinds of stages that a recipe names by file or module, and put their own names in place of that.

    Args:
        stages: name → fields, as the recipe has them; changed in place.
        named: the recipe's plug-ins, which those kinds join.

    Raises:
        UserError: names the field; the file or module is not there, fails when it is imported, or has no such kind.
    """
    for name, fields in stages.items():
        kind = fields.get("kind") if isinstance(fields, dict) else None
        if not isinstance(kind, str) or not plugins.is_reference(kind):
            continue
        plugin = f"{plugins.STAGES}={kind}"
        try:
            plugins.activate([plugin])
            fields["kind"] = kind_of(kind, plugins.origins()[plugins.STAGES][kind]).name
            stage_kinds()
        except UserError as error:
            raise error.moved("plugins", f"{name}.kind") from error
        named += [plugin] if plugin not in named else []


def of(nodes: Iterable[Node]) -> list[str]:
    """The same as plug-ins for a process that does not read the recipe: `SLOT=REFERENCE`."""
    sections = {node.name: (node.kind.name, node.settings.model_dump()) for node in nodes}
    return list(dict.fromkeys(plugin for _, plugin in _plugins(sections)))


def _plugins(sections: Mapping[str, tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    """(field, plug-in) of every part that is named by where it is."""
    for name, (kind, fields) in sections.items():
        for field, slot, part in _named(kind, fields, name):
            if plugins.is_reference(part):
                yield field, f"{slot}={part}"


def _named(kind: str, fields: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """(field, slot, name) of every part that a stage's section names."""
    if not isinstance(fields, Mapping):
        return
    known = stage_kinds().get(kind)
    slots = (
        [*known.slots, *(f"rlvr.{slot}" for slot in (*SLOTS, "providers") if known.methods)]
        if known is not None
        else []
    )
    for field, slot in {**{slot.rpartition(".")[2]: slot for slot in slots}, "monitors": MONITORS}.items():
        for place, part in _methods(fields.get(field), f"{path}.{field}"):
            yield place, slot, part
    yield from _anywhere(fields, path)


def _methods(spec: Any, path: str) -> Iterator[tuple[str, str]]:
    """The names in what fills a slot: a name, settings with `kind`, several of them, and a method's `terms`."""
    if isinstance(spec, str):
        yield path, spec
    elif isinstance(spec, list):
        for number, each in enumerate(spec):
            yield from _methods(each, f"{path}.{number}")
    elif isinstance(spec, Mapping):
        yield from _methods(spec.get("kind"), path)
        yield from _methods(spec.get("terms"), f"{path}.terms")


def _anywhere(value: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Verifiers and environments, at any depth."""
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from _anywhere(each, f"{path}.{number}")
    elif isinstance(value, Mapping):
        if value.get("kind") == "environment" and isinstance(value.get("task"), str):
            yield f"{path}.task", "environments", value["task"]
        for name, each in value.items():
            if name == "environment" and isinstance(each, Mapping) and isinstance(each.get("task"), str):
                yield f"{path}.environment.task", "environments", each["task"]
            if name in ANYWHERE and isinstance(each, str):
                yield f"{path}.{name}", ANYWHERE[name], each
            yield from _anywhere(each, f"{path}.{name}")
