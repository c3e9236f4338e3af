"""The model registry as promotions use it: versions, the alias `champion`, and tags that remember looks.

Every function raises `TrackerUnavailable` or `TrackerRejected`.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import mlflow

from tasks.tracking.client import client, mlflow_errors

ALIAS = "champion"


@mlflow_errors()
def versions_of(model_id: str) -> list[tuple[str, str]]:
    """(registered name, version) of a LoggedModel, newest first."""
    to = client()
    source = to.get_logged_model(model_id)
    listed = to.search_model_versions(f"run_id = '{source.source_run_id}'")
    own = [v for v in listed if model_id in (getattr(v, "model_id", None), v.tags.get("whetstone.model_id"))]
    return [(v.name, str(v.version)) for v in sorted(own, key=lambda v: -int(v.version))]


@mlflow_errors()
def registered(*, in_use: bool = False) -> set[str]:
    """Ids of the LoggedModels that a version of any registered model was made from.

    Args:
        in_use: only those of versions that have an alias (champion, candidate, or one of a person's), or have been champion.
    """
    to, ids, page = client(), set(), None
    used = _in_use() if in_use else None
    while True:
        versions = to.search_model_versions(page_token=page)
        wanted = [v for v in versions if used is None or (v.name, str(v.version)) in used]
        ids |= {str(getattr(v, "model_id", None) or v.tags.get("whetstone.model_id")) for v in wanted}
        page = versions.token
        if not page:
            return ids - {"None"}


def _in_use() -> set[tuple[str, str]]:
    """(name, version) of what has an alias or could be rolled back to."""
    to, used = client(), set()
    for name in names():
        aliases = to.get_registered_model(name).aliases.values()
        used |= {(name, str(version)) for version in [*aliases, *ledger(name).get("champions", [])]}
    return used


@mlflow_errors()
def names() -> list[str]:
    """Every registered name."""
    to = client()
    listed: list[str] = []
    page = None
    while True:
        models = to.search_registered_models(page_token=page)
        listed += [model.name for model in models]
        page = models.token
        if not page:
            return listed


@mlflow_errors()
def add_name(name: str, about: str | None = None) -> None:
    """Register a name that has no version yet, with this description, unless it is there."""
    to = client()
    if not to.search_registered_models(f"name='{name}'"):
        with contextlib.suppress(mlflow.MlflowException):  # another process registered the name in the meantime
            to.create_registered_model(name, description=about)


@mlflow_errors()
def champion(name: str) -> tuple[str, dict[str, str]] | None:
    """(version, its tags) of the champion, None where there is none yet."""
    to = client()
    version = to.get_registered_model(name).aliases.get(ALIAS)
    if version is None:
        return None
    return str(version), dict(to.get_model_version(name, str(version)).tags)


@mlflow_errors()
def version_tags(name: str, version: str) -> dict[str, str]:
    """Tags of a version."""
    return dict(client().get_model_version(name, version).tags)


@mlflow_errors()
def ledger(name: str) -> dict[str, Any]:
    """The JSON values of our tags on a registered name, by key without `whetstone.`."""
    values = {}
    for key, value in client().get_registered_model(name).tags.items():
        if key.startswith("whetstone."):
            try:
                values[key.removeprefix("whetstone.")] = json.loads(value)
            except ValueError:
                continue
    return values


@mlflow_errors()
def remember(name: str, key: str, value: Any) -> None:
    """Write a value into the ledger."""
    client().set_registered_model_tag(name, f"whetstone.{key}", json.dumps(value))


@mlflow_errors()
def set_champion(name: str, version: str, tags: dict[str, str]) -> None:
    """Give the alias to a version."""
    to = client()
    for key, value in tags.items():
        to.set_model_version_tag(name, version, key, value[:4900])
    to.set_registered_model_alias(name, ALIAS, version)


@mlflow_errors()
def clear_champion(name: str) -> None:
    """Take the alias away."""
    client().delete_registered_model_alias(name, ALIAS)


@mlflow_errors()
def keep_evidence(run_id: str, file: str, body: dict[str, Any], tags: dict[str, str]) -> None:
    """Put a JSON artifact and tags on a run."""
    to = client()
    to.log_dict(run_id, body, file)
    for key, value in tags.items():
        to.set_tag(run_id, key, value[:7900])
