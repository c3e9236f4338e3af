"""Recipes from files, from plain fields and from typed objects, read by the same code as the command line's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipelines.base.errors import RecipeError
from pipelines.base.files import digest, write_atomic
from pipelines.base.project import make_home
from pipelines.recipe import yaml_text
from pipelines.recipe.read import Recipe, read_recipe, resolve
from whetstone_rlvr.errors import explained

Source = str | os.PathLike[str] | Mapping[str, Any] | Recipe
"""A YAML file, the fields of one, or a recipe."""
Changes = Mapping[str, Any] | Iterable[str] | None
"""What is changed in a recipe: field → value, or texts such as `rlvr.steps=3`."""


@explained
def recipe(source: Source, set: Changes = None) -> Recipe:
    """Read a recipe and check its fields; what depends on data and methods is checked by `plan`.

    Args:
        source: a YAML file (`recipes/gsm8k.yaml` and its like are the project's own where the working folder has none), its fields as a
            dict, or a recipe built in code. A dict may hold the typed objects of `whetstone_rlvr.settings`.
        set: fields to change, as `--set` does: `{"rlvr.steps": 3}` or `["rlvr.steps=3"]`.

    Raises:
        UserError: names the field and the fix.

    >>> quickstart = whetstone.recipe("recipes/quickstart.yaml", set={"rlvr.steps": 3})
    >>> quickstart.rlvr.steps
    3
    """
    return read(source, set).recipe


@dataclass(frozen=True)
class Reading:
    """A recipe with where it came from, as the record of a run names it."""

    recipe: Recipe
    overrides: list[str]
    file: str | None = None
    text: str = ""
    """As a YAML file has it, where it came from no file."""

    def saved(self) -> str:
        """The recipe's file; one that came from no file is written into the project folder, where commands can read it."""
        if self.file is not None:
            return self.file
        path = make_home() / "pipelines" / "recipes" / f"{self.recipe.name}-{digest(self.text)[:12]}.yaml"
        write_atomic(path, self.text)
        return str(path)


def read(source: Source, set: Changes = None) -> Reading:
    """As `recipe`, with what a run's record needs."""
    overrides = changes(set)
    if isinstance(source, str | os.PathLike):
        return Reading(read_recipe(Path(source), overrides), overrides, file=os.fspath(source))
    if not isinstance(source, Mapping | Recipe):
        raise RecipeError("source", f"a file, its fields or a Recipe is wanted (got {type(source).__name__}).")
    text = _json(plain(source), "source", indent=1)
    return Reading(resolve(yaml_text.parse(text, "source"), overrides), overrides, text=text)


def changes(set: Changes) -> list[str]:
    """Changes as `--set` has them.

    >>> changes({"rlvr.steps": 3, "rlvr.advantage": "rloo"})
    ['rlvr.steps=3', 'rlvr.advantage="rloo"']
    """
    if set is None:
        return []
    if isinstance(set, Mapping):
        return [f"{field}={_json(plain(value), str(field))}" for field, value in set.items()]
    return [str(text) for text in listed(set)]


def listed(names: str | Iterable[str]) -> list[str]:
    """Several names, or one that stands alone."""
    return [names] if isinstance(names, str) else [*names]


def plain(value: Any) -> Any:
    """A value as YAML has it: typed objects as the fields that were set, paths as text."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


def _json(value: Any, field: str, indent: int | None = None) -> str:
    """JSON, which is YAML in which every text is in quotes."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except (TypeError, ValueError) as error:
        raise RecipeError(field, f"a recipe holds plain values only ({error}).") from None
