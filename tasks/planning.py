"""What a run would do with a stage, and why; with what is reused if data that are made again hold the same rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.base.files import read_object, write_atomic
from pipelines.recipe.read import Recipe
from pipelines.recipe.stage_kind import DATA
from tasks import keys
from tasks.environment import runs_folder
from tasks.store import artifacts
from tasks.store.artifacts import Artifact


@dataclass(frozen=True)
class Planned:
    """What a pipeline run would do with a stage."""

    stage: str
    action: str
    """"reuse" or "run"."""
    why: str
    key: str | None = None
    artifact: Artifact | None = None
    if_same: tuple[str, ...] = ()
    """It is reused after all if these stages, which run, make the same rows as before."""


class Expected:
    """What the stages that run will make if the data among them hold the same rows as before."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.outputs: dict[str, Artifact] = {}
        self.depends: dict[str, tuple[str, ...]] = {}
        """Stage of `outputs` → the stages whose rows it depends on."""

    def runs(self, stage: str) -> None:
        """Data will be made again: as it was made when it was last part of this recipe, where it is still there."""
        parts = last_parts(self.recipe, stage) if self.recipe.node(stage).kind.makes == DATA else None
        before = find(self.recipe, stage, keys.stage_key(parts)) if parts else None
        if before is not None:
            self.outputs[stage], self.depends[stage] = before, (stage,)

    def waits(self, stage: str, waiting: list[str], done: dict[str, Artifact]) -> Planned:
        """The plan of a stage that reads what stages make which are not done yet."""
        known = self.outputs | done
        if all(source in known for source in waiting):
            digests = {label: known[source].digest for label, source in self.recipe.node(stage).inputs.items()}
            artifact = find(self.recipe, stage, keys.stage_key(keys.key_parts(self.recipe, stage, digests)))
            if artifact is not None:
                self.outputs[stage] = artifact
                self.depends[stage] = tuple(dict.fromkeys(s for source in waiting for s in self.depends[source]))
                why = f"reused if the rows of {listed(self.depends[stage])} stay the same"
                return Planned(stage, "run", why, if_same=self.depends[stage])
        return Planned(stage, "run", f"{listed(waiting)} will run")


def find(recipe: Recipe, stage: str, key: str) -> Artifact | None:
    """The whole artifact of a stage and key, where it is here."""
    return artifacts.find(runs_folder(), recipe.graph[stage].kind, key)[0]


def listed(names: list[str] | tuple[str, ...]) -> str:
    """Names as a sentence has them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def why(recipe: Recipe, stage: str, parts: dict[str, Any], damage: str | None) -> str:
    """Why a stage runs, in words.

    Args:
        parts: of its key.
        damage: what is wrong with the artifact that is there.
    """
    if damage is not None:
        return f"its artifact cannot be used: {damage}"
    before = last_parts(recipe, stage)
    if before is None:
        return "it has not run before"
    changes = keys.difference(before, json.loads(json.dumps(parts, default=str)))
    if not changes:
        return "its artifact is gone"
    rest = f" (and {len(changes) - 3} more)" if len(changes) > 3 else ""
    return "; ".join(changes[:3]) + rest


def last_parts(recipe: Recipe, stage: str) -> dict[str, Any] | None:
    """What the key of a stage was made of when it was last part of this recipe."""
    return read_object(_last(recipe, stage))


def remember(recipe: Recipe, stage: str, parts: dict[str, Any]) -> None:
    """Note what the key of a stage is made of."""
    write_atomic(_last(recipe, stage), json.dumps(parts, default=str, sort_keys=True), durable=False)


def _last(recipe: Recipe, stage: str) -> Path:
    return runs_folder() / ".last" / f"{recipe.name}-{stage}.json"
