"""What a run would do, and what would stop it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.base.errors import Problem
from pipelines.recipe.read import Recipe
from whetstone_rlvr.errors import explained
from whetstone_rlvr.recipes import Changes, Source, listed, read

if TYPE_CHECKING:
    import pandas as pd

    from tasks.pipeline import Prepared


@dataclass(frozen=True)
class PlannedStage:
    """What a run would do with one stage."""

    name: str
    kind: str
    action: str
    """"run" or "reuse"."""
    why: str
    key: str | None
    """Digest of all that can change its result; None where it depends on what is not made yet."""

    @property
    def reused(self) -> bool:
        """Whether its artifact is there and is taken."""
        return self.action == "reuse"


class Plan:
    """What a run would do: `stages` (name → stage), `problems` (what would stop it), `recipe`.

    As text it is what `whetstone plan` prints.
    """

    def __init__(self, prepared: Prepared, problems: list[Problem]) -> None:
        self._prepared = prepared
        self.problems = problems
        self.stages = {
            p.stage: PlannedStage(p.stage, self.recipe.graph[p.stage].kind, p.action, p.why, p.key)
            for p in prepared.planned
        }

    @property
    def recipe(self) -> Recipe:
        """With presets and changes."""
        return self._prepared.recipe

    @property
    def ok(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.problems

    def frame(self) -> pd.DataFrame:
        """The stages as a pandas frame: stage, kind, action, why, key."""
        import pandas as pd

        frame = pd.DataFrame(map(vars, self.stages.values()), columns=["name", "kind", "action", "why", "key"])
        return frame.rename(columns={"name": "stage"})

    def __repr__(self) -> str:
        from flows.cli import drawing

        text = drawing.plan(self.recipe, self._prepared.planned)
        count = f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"
        return "\n".join([text, *([count, *(f"  {p}" for p in self.problems)] if self.problems else [])])


@explained
def plan(
    source: Source,
    set: Changes = None,
    *,
    start: str | None = None,
    until: str | None = None,
    only: Iterable[str] = (),
    fresh: bool = False,
) -> Plan:
    """Say what a run would do, stage by stage and why, with all that is wrong; computes nothing.

    Args:
        source: a recipe, as `recipe` takes it.
        set: fields to change, as `recipe` takes them.
        start: this stage and all that depend on it (`--from`).
        until: this stage and all that it depends on.
        only: these stages only.
        fresh: run the chosen stages even where nothing changed.

    Returns:
        `stages` by name (`action`, `why`, `key`), `problems` (field, problem, fix), `ok`, and a frame.

    Raises:
        UserError: the recipe cannot be read, so that there is nothing to plan.

    >>> plan = whetstone.plan(toy)
    >>> [(stage.name, stage.action) for stage in plan.stages.values()]
    [('curate', 'run'), ('sft', 'run'), ('rlvr', 'run'), ('evaluate', 'run')]
    >>> whetstone.plan(toy, set={"rlvr.advantage": "gae"}).problems[0].field
    'rlvr.advantage'
    """
    from tasks import environment
    from tasks.environment import folder as project_folder
    from tasks.pipeline import Prepared, Selection
    from tasks.preflight import check

    with project_folder.only_looked_at(environment.home()):
        chosen = Selection(start, until, tuple(listed(only)))
        prepared = Prepared.of_recipe(read(source, set).recipe, chosen, fresh=fresh, fetch=False)
        return Plan(prepared, check.examine(prepared.recipe, prepared.will_run))
