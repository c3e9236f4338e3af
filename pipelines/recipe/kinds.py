"""The registry of kinds of stages: every package of the project that has a `kind.py`."""

from __future__ import annotations

import importlib
from functools import cache

from pipelines.errors import RecipeError, did_you_mean
from pipelines.project import ROOT
from pipelines.recipe.stage_kind import Kind


@cache
def every() -> dict[str, Kind]:
    """Name → kind, in the order of the names.

    Raises:
        TypeError: a `kind.py` registers nothing, or a name that is taken.
    """
    kinds: dict[str, Kind] = {}
    for path in sorted([*ROOT.glob("pipelines/*/kind.py"), *ROOT.glob("*/kind.py")]):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        kind = getattr(importlib.import_module(module), "KIND", None)
        if not isinstance(kind, Kind) or kind.name in kinds:
            raise TypeError(f"{module}: KIND must be an instance of Kind whose name no other package has")
        kinds[kind.name] = kind
    return dict(sorted(kinds.items()))


def get(name: str) -> Kind:
    """The kind of a name.

    Raises:
        RecipeError: there is none.
    """
    if name not in every():
        raise RecipeError(f"kind: there is no kind of stage called {name[:80]!r}. {did_you_mean(name[:80], every())}")
    return every()[name]
