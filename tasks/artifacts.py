"""Stage results on disk: found by key, verified when read, published by one rename."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.stage.files import MANIFEST, damage, publish, read_json, write_manifest


@dataclass(frozen=True)
class Artifact:
    """A finished stage."""

    stage: str
    key: str
    path: Path
    digest: str
    """Of its contents, the report folder left out."""
    numbers: dict[str, float] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    """What the key was made of."""
    run_id: str | None = None
    """MLflow run of the stage that made it."""
    model_id: str | None = None
    """MLflow LoggedModel of its `model/` folder."""
    seconds: float = 0.0


def folder(runs: Path, stage: str, key: str) -> Path:
    """Where the artifact of a stage and key lives."""
    return runs / f"{stage}-{key}"


def find(runs: Path, stage: str, key: str) -> tuple[Artifact | None, str | None]:
    """A whole artifact, or None and what is wrong with the one that is there (None: there is none)."""
    path = folder(runs, stage, key)
    if not path.exists():
        return None, None
    wrong = damage(path)
    if wrong is not None:
        return None, wrong
    return read(path), None


def read(path: Path) -> Artifact:
    """The artifact of a folder, from its manifest, unverified."""
    body = read_json(path / MANIFEST) or {}
    return Artifact(
        stage=body["stage"],
        key=body["key"],
        path=path,
        digest=body["digest"],
        numbers=body.get("numbers", {}),
        parts=body.get("parts", {}),
        run_id=body.get("run_id"),
        model_id=body.get("model_id"),
        seconds=body.get("seconds", 0.0),
    )


def put(building: Path, runs: Path, stage: str, key: str, about: dict[str, Any]) -> Artifact:
    """Write the manifest into a finished folder and give the folder its name."""
    write_manifest(building, {"stage": stage, "key": key, **about})
    final = folder(runs, stage, key)
    publish(building, final)
    return read(final)


def remove(runs: Path, stage: str, key: str) -> None:
    """Forget an artifact."""
    shutil.rmtree(folder(runs, stage, key), ignore_errors=True)


def all_of(runs: Path) -> list[Artifact]:
    """Every artifact whose manifest can be read, newest first, unverified."""
    found = [
        read(p)
        for p in runs.glob("*-*")
        if re.fullmatch(r"[a-z]+-[0-9a-f]{16}", p.name) and isinstance(read_json(p / MANIFEST), dict)
    ]
    return sorted(found, key=lambda a: -(a.path / MANIFEST).stat().st_mtime)
