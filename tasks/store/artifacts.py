"""Stage results on disk: found by key, verified when read, published by one rename."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.base.files import MANIFEST, damage, publish, read_manifest, read_object, write_manifest
from tasks.keys import stage_key


@dataclass(frozen=True)
class Artifact:
    """A finished stage."""

    stage: str
    """Its kind: what a recipe calls the stage is no part of what it made."""
    key: str
    path: Path
    digest: str
    """Of its contents, the report folder left out."""
    metrics: dict[str, float] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    """What the key was made of."""
    run_id: str | None = None
    """MLflow run of the stage that made it."""
    model_id: str | None = None
    """MLflow LoggedModel of its `model/` folder."""
    seconds: float = 0.0
    alarms: list[dict[str, Any]] = field(default_factory=list)
    """What its monitors found: step, monitor, action, text."""
    makes: str = ""
    """What it is, where a plug-in brings its kind: commands that read it know no plug-ins."""

    @property
    def name(self) -> str:
        """`stage-key`: the name of its folder, and of the artifact wherever one is named."""
        return name_of(self.stage, self.key)


def stored_scores(evaluation: Path) -> dict[str, Any]:
    """Checkpoint → benchmark → metric → score of an evaluation's folder, in the order of its columns; empty where it has none."""
    return (read_object(evaluation / "results.json", evaluation=dict) or {}).get("evaluation") or {}


NAME = re.compile(r"([a-z_]+)-([0-9a-f]{16})")
"""The name of an artifact: kind and key of the stage."""


def name_of(stage: str, key: str) -> str:
    """The name of the artifact of a stage and key."""
    return f"{stage}-{key}"


def kind_of(name: str) -> str:
    """The kind in the name of an artifact.

    >>> kind_of("reward_model-0123456789abcdef")
    'reward_model'
    """
    return name.rpartition("-")[0]


def folder(runs: Path, stage: str, key: str) -> Path:
    """Where the artifact of a stage and key lives."""
    return runs / name_of(stage, key)


def find(runs: Path, stage: str, key: str) -> tuple[Artifact | None, str | None]:
    """A whole artifact, or None and what is wrong with the one that is there (None: there is none)."""
    path = folder(runs, stage, key)
    if not path.exists() and not path.is_symlink():
        return None, None
    damaged = damage(path) or _other(path, stage, key)
    if damaged is not None:
        return None, damaged
    return read(path), None


def _other(path: Path, stage: str, key: str) -> str | None:
    body = read_manifest(path) or {}
    if (body.get("stage"), body.get("key")) != (stage, key):
        return f"it is {name_of(str(body.get('stage')), str(body.get('key')))} under another name"
    return None


def foreign(path: Path, stage: str, key: str) -> str | None:
    """Why a folder that came from elsewhere is not the artifact that was wanted, in words; None where it is.

    Beyond `find`: the parts that its manifest tells must give the key, no link may lead out, and it may hold no file that its
    manifest does not name.
    """
    for entry in path.rglob("*"):
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
            return f"{entry.relative_to(path)} is neither a file nor a folder"
    reason = damage(path) or _other(path, stage, key)
    body = read_manifest(path) or {}
    reason = reason or _not_of_its_key(body, key)
    if reason is not None:
        return reason
    present = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()} - {MANIFEST}
    unnamed = sorted(present - set(body["files"]))
    return f"{unnamed[0]} is not in its manifest" if unnamed else None


def foreign_record(path: Path, stage: str, key: str) -> str | None:
    """Why a manifest that came from elsewhere is not that of the artifact that was wanted, in words; None where it is."""
    body = read_manifest(path)
    if body is None:
        return "its manifest cannot be read"
    return _other(path, stage, key) or _not_of_its_key(body, key)


def _not_of_its_key(body: dict[str, Any], key: str) -> str | None:
    return None if stage_key(body.get("parts") or {}) == key else "what it says it was made of does not give its key"


def read(path: Path) -> Artifact:
    """The artifact of a folder, from its manifest, unverified."""
    body = read_manifest(path) or {}
    return Artifact(
        stage=body["stage"],
        key=body["key"],
        path=path,
        digest=body["digest"],
        metrics=body.get("numbers") or {},
        parts=body.get("parts") or {},
        run_id=body.get("run_id"),
        model_id=body.get("model_id"),
        seconds=body.get("seconds") or 0.0,
        alarms=[alarm for alarm in body.get("alarms") or [] if isinstance(alarm, dict)],
        makes=str(body.get("makes") or ""),
    )


def put(building: Path, runs: Path, stage: str, key: str, about: dict[str, Any]) -> Artifact:
    """Write the manifest into a finished folder and give the folder its name."""
    write_manifest(building, {"stage": stage, "key": key, **about})
    final = folder(runs, stage, key)
    if final.is_file() or final.is_symlink():  # publish() moves a damaged folder away by itself
        final.rename(final.with_name(f"{final.name}.in-the-way"))
    publish(building, final)
    return read(final)


def remove(runs: Path, stage: str, key: str) -> None:
    """Forget an artifact."""
    shutil.rmtree(folder(runs, stage, key), ignore_errors=True)


def all_of(runs: Path) -> list[Artifact]:
    """Every artifact whose manifest can be read, newest first, unverified."""
    readable = [read(p) for p in runs.glob("*-*") if NAME.fullmatch(p.name) and read_manifest(p) is not None]
    return sorted(readable, key=lambda a: -(a.path / MANIFEST).stat().st_mtime)
