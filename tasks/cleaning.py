"""What can go from a project folder: stages that nothing registered was made from, and that no run has used for some time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.base.errors import UserError
from pipelines.base.files import MANIFEST
from pipelines.recipe.stage_kind import SCORES
from tasks import process
from tasks.environment import runs_folder
from tasks.store import index
from tasks.store.artifacts import NAME, Artifact
from tasks.store.known import Known, makes
from tasks.tracking import outbox

DAY_S = 86_400.0


@dataclass(frozen=True)
class Removable:
    """A folder that may go."""

    path: Path
    size: int
    """Bytes of its files."""
    used: float
    """Seconds since the epoch: when it was made, or the last run that used it started."""
    stored: bool
    """Whether MLflow has it, so that it can be fetched instead of computed again."""


@dataclass
class Cleaning:
    """What goes, and how much stays for which reason."""

    artifacts: list[Removable] = field(default_factory=list)
    interrupted: list[Removable] = field(default_factory=list)
    """Working folders of stages that did not end; their commits go with them. And downloads that were broken off."""
    kept: dict[str, int] = field(default_factory=dict)
    """Reason → artifacts that stay."""

    @property
    def folders(self) -> list[Removable]:
        """All that goes."""
        return [*self.artifacts, *self.interrupted]

    @property
    def size(self) -> int:
        """Bytes that go."""
        return sum(each.size for each in self.folders)


def plan(days: float, registered: Collection[str], now: float | None = None) -> Cleaning:
    """Look for what was last used more than `days` ago.

    Args:
        registered: ids of the LoggedModels that have a version in the model registry.
        now: seconds since the epoch; default: the clock's.

    Raises:
        UserError: a pipeline run is under way, whose stages read artifacts that this would take.
    """
    known, limit = Known(), (time.time() if now is None else now) - days * DAY_S
    running = next(
        (r for r in known.runs if r["status"] == "RUNNING" and (r["started"] > limit or index.works(r))), None
    )
    if running is not None:
        raise UserError(f"the run {running['name']} ({running['run_id'][:8]}) is under way. Clean when it has ended.")
    used, needed, cleaning = _last_used(known), _needed(known, set(registered)), Cleaning()
    for artifact in known.artifacts:
        last = max(used.get(artifact.key, 0.0), (artifact.path / MANIFEST).stat().st_mtime)
        if reason := needed.get(artifact.name) or _still_used(artifact.name, last > limit):
            cleaning.kept[reason] = cleaning.kept.get(reason, 0) + 1
        else:
            stored = outbox.uploaded(artifact.path).run_id is not None
            cleaning.artifacts.append(Removable(artifact.path, _size(artifact.path), last, stored))
    for work in sorted(path for place in (".work", ".fetched") for path in (runs_folder() / place).glob("*-*")):
        last = max(path.lstat().st_mtime for path in [work, *work.rglob("*")])
        if NAME.fullmatch(work.name) and last <= limit and not (work / outbox.UPLOAD).exists():
            cleaning.interrupted.append(Removable(work, _size(work), last, stored=False))
    return cleaning


def remove(cleaning: Cleaning, show: Callable[[Removable], Any] = lambda _: None) -> None:
    """Delete what was planned, each folder under the lock that a stage of its name holds while it computes.

    Args:
        show: called with each folder before it goes.
    """
    leaving = runs_folder() / ".leaving"  # a killed command leaves no half of an artifact, and the next one goes on
    shutil.rmtree(leaving, ignore_errors=True)
    for each in cleaning.folders:
        with process.lock(runs_folder() / ".locks" / each.path.name):
            show(each)
            each.path.rename(leaving)
            shutil.rmtree(leaving)


def _last_used(known: Known) -> dict[str, float]:
    """Key of a stage → start of the newest run that made or reused it."""
    used: dict[str, float] = {}
    for run in known.runs:
        for about in ((run.get("summary") or {}).get("stages") or {}).values():
            if isinstance(about, dict):
                used.setdefault(str(about.get("key")), float(run["started"]))
    return used


def _needed(known: Known, registered: set[str]) -> dict[str, str]:
    """Name of an artifact → why it stays whatever its age: registered models, what they were made from, and their scores."""
    reasons: dict[str, str] = {}
    models = {artifact.name for artifact in known.artifacts if _models(artifact) & registered}
    for artifact in known.artifacts:
        chain = known.chain(artifact)
        if artifact.name in models:
            reasons |= dict.fromkeys((each.name for each in chain), "a registered model was made from it")
        elif makes(artifact) == SCORES and any(each.name in models for each in chain):
            reasons[artifact.name] = "it has the scores of a registered model"
    return reasons | dict.fromkeys(models, "it is registered")


def _models(artifact: Artifact) -> set[str]:
    """Ids of the LoggedModels that an artifact was sent as."""
    sent = outbox.uploaded(artifact.path).models.values()
    return {str(each) for each in [*sent, artifact.model_id] if each}


def _still_used(name: str, recently: bool) -> str:
    """Why an artifact that nothing registered needs stays; empty where it may go."""
    if recently:
        return "a run has used it since"
    waits = any(outbox.folder().glob(f"*{name}*")) or (runs_folder() / ".work" / name / outbox.UPLOAD).exists()
    return "its upload is pending" if waits else ""


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
