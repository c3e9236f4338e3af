"""What the forms of flows offer and explain: the names of stages, with the registered kinds to choose from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pipelines.recipe.stage_kind import stage_kinds

_Kind = Annotated[str, Field(title="a kind of stage", json_schema_extra={"enum": sorted(stage_kinds())})]
_Name = Annotated[str, Field(title="a stage of the recipe by its own name")]
Stage = _Kind | _Name
"""A stage: a drop-down of the kinds that are registered (plug-ins too), or the name that a recipe of named stages gives it."""
STAGE_FORM = """Args:
        recipe: path of a YAML file; `recipes/NAME.yaml` is the project's own where the working folder has none.
        overrides: `field=value` changes to the recipe, such as `rlvr.advantage=rloo`.
        fresh: run the stage even where its artifact exists.
"""


def explained(flow: Any) -> Any:
    """A stage's flow whose form explains its parameters: `STAGE_FORM` below its docstring."""
    flow.__doc__ = f"{flow.__doc__}\n\n    {STAGE_FORM}"
    return flow
