"""Why a stage that a selection reads is not there, and what of it is other than in the run that is repeated."""

from __future__ import annotations

import json
from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.base.files import read_manifest
from pipelines.recipe.read import Recipe
from tasks import brought, keys, planning
from tasks.environment import Unreachable
from tasks.planning import Planned

SHOWN = 3
"""Modules, and other changes, that a message lists."""
COMMIT = "mlflow.source.git.commit"


def missing(recipe: Recipe, stage: str, source: str, planned: list[Planned], of_run: str | None) -> RecipeError:
    """The error for a stage that reads another one which is not there. It tells of the first stage that is not, which the others wait for.

    Args:
        of_run: id of the run in MLflow that is repeated; None where none is.
    """
    upstream = {source, *(node.name for node in recipe.node(source).ancestors())}
    first = next(each for each in planned if each.stage in upstream and each.artifact is None)
    why, other_code = first.why, None
    if of_run is not None:
        digests = {each.stage: each.artifact.digest for each in planned if each.artifact is not None}
        inputs = {label: digests[name] for label, name in recipe.node(first.stage).inputs.items()}
        parts = json.loads(json.dumps(keys.key_parts(recipe, first.stage, inputs), default=str))
        why, other_code = _since(of_run, first.stage, parts) or (why, None)
    whose = "" if first.stage == source else f"{first.stage}: "
    return RecipeError(
        f"{stage} needs {source}, which has not been made for this recipe ({whose}{why})",
        fix=f"Include it: --from {first.stage}.{f' Or take the code of commit {other_code}.' if other_code else ''}",
    )


def _since(of_run: str, stage: str, parts: dict[str, Any]) -> tuple[str, str | None] | None:
    """What of a stage's key is other than in a run, in words, and the run's commit where the code is; None where MLflow does not say.

    Args:
        parts: of the key, as JSON holds them.
    """
    try:
        run = brought.remote_run(of_run)
    except Unreachable:
        return None
    about = ((run or {}).get("summary") or {}).get("stages", {}).get(stage)
    if run is None or not isinstance(about, dict):
        return None
    brought.records(run, [stage])
    folder = brought.place(str(about["kind"]), str(about.get("key")))
    before = (read_manifest(folder) or {}).get("parts") if folder is not None else None
    if not isinstance(before, dict):
        return None
    told, code = changes(before, parts)
    name = f"run {of_run[:8]}"
    if not told:
        return f"it is as in {name}, and MLflow does not hold its files", None
    commit = run["tags"].get(COMMIT) if code else None
    return f"since {name} {'; '.join(told)}", str(commit)[:12] if commit else None


def changes(before: dict[str, Any], now: dict[str, Any]) -> tuple[list[str], bool]:
    """What differs between two sets of key parts, in words, with all of the code as one change; whether the code does.

    >>> changes({"source": {"a": "1", "b": "1", "c": "1", "d": "1"}, "seed": 0}, {"source": dict.fromkeys("abcd", "2"), "seed": 1})
    (['the code of a, b, c and 1 more modules changed', 'seed changed 0 → 1'], True)
    """
    old, new = (each.get("source") or {} for each in (before, now))
    modules = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    others = keys.difference(before | {"source": {}}, now | {"source": {}})
    shown = [*modules[:SHOWN], *([f"{len(modules) - SHOWN} more modules"] if len(modules) > SHOWN else [])]
    code = [f"the code of {planning.listed(shown)} changed"] if modules else []
    return [*code, *others[:SHOWN], *([f"{len(others) - SHOWN} more"] if len(others) > SHOWN else [])], bool(modules)
