"""Splits that curation left empty, noticed before the stages that train for hours are started."""

from __future__ import annotations

from collections.abc import Iterable

from pipelines.base.errors import RecipeError
from pipelines.base.files import read_object
from pipelines.recipe.read import Recipe
from pipelines.recipe.stage_kind import DATA
from tasks.store.artifacts import Artifact

FIELDS = ("split", "heldout")
"""What stages call a split that they read."""


def check_filled(recipe: Recipe, stages: Iterable[str], data: str, artifact: Artifact) -> None:
    """No split that one of the stages reads is empty.

    Args:
        stages: those that this run is to make.
        data: a stage, and the artifact that it made; nothing is looked at where that is no data.

    Raises:
        RecipeError: one is; names the field of the stage that would have failed.
    """
    if recipe.node(data).kind.makes != DATA:
        return
    rows = (read_object(artifact.path / "data.json") or {}).get("splits") or {}
    for node in (recipe.node(stage) for stage in stages):
        for field in FIELDS if data in node.named("data") else ():
            split = getattr(node.settings, field, None)
            if rows.get(split) == 0:
                optional = f" Or set {field}: null." if field == "heldout" else ""
                raise RecipeError(
                    f"{node.name}.{field}",
                    f"split {split!r} of {data} is empty: the filters and shares left it none of {sum(rows.values())} rows",
                    f"Raise its share in {data}.splits, or name another split; {artifact.path}/report/card.md counts.{optional}",
                )
