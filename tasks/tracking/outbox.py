"""The upload outbox: finished stages and runs that MLflow has not taken yet, kept until it does.

An entry is a folder under `runs/.outbox` with `upload.json`, which says what to tell MLflow; a stage's entry is its work
folder, with the spool. Sending is safe to repeat. What MLflow refuses for good is set aside under `refused/`, with the reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.base.files import damage, read_manifest, read_object, write_atomic
from pipelines.recipe.stage_kind import BASE, SCORES, kind_of_run
from tasks.environment import runs_folder
from tasks.store import artifacts
from tasks.store.artifacts import kind_of
from tasks.tracking import benchmarks, rollouts
from tasks.tracking.time_budget import TimeBudget, TrackerError, TrackerRejected, TrackerUnavailable

log = logging.getLogger("whetstone.outbox")
UPLOAD, REASON, ARRIVED = "upload.json", "refused.json", "arrived.json"


@dataclass
class Flushed:
    """What became of the outbox."""

    sent: int = 0
    pending: int = 0
    refused: list[str] = field(default_factory=list)
    """One line each: entry and reason."""


def folder() -> Path:
    """Where entries wait."""
    return runs_folder() / ".outbox"


def note(work: Path, body: dict[str, Any]) -> None:
    """Write into a work folder what is to be uploaded to MLflow, so that it survives a crash right after."""
    write_atomic(work / UPLOAD, json.dumps(body))


def add(work: Path) -> Path:
    """Move a stage's work folder, with its `upload.json`, into the outbox; returns the entry."""
    entry = folder() / f"{work.name}-{uuid.uuid4().hex[:8]}"
    entry.parent.mkdir(parents=True, exist_ok=True)
    work.rename(entry)
    return entry


def add_run(run_id: str, body: dict[str, Any]) -> Path:
    """Keep what a run has to be told at its end: `{"kind": "close" or "pipeline", ...}`; returns the entry."""
    entry = entry_of(run_id)
    entry.mkdir(parents=True, exist_ok=True)
    note(entry, {**body, "run_id": run_id})
    return entry


def entry_of(run_id: str) -> Path:
    """Where what a run has to be told waits; a folder that is there has not been sent."""
    return folder() / f"run-{run_id}"


def add_text(run_id: str, file: str, text: str) -> Path:
    """Keep a file that is to be among those of a run; returns the entry."""
    entry = folder() / f"text-{run_id}"
    entry.mkdir(parents=True, exist_ok=True)
    note(entry, {"kind": "text", "run_id": run_id, "file": file, "text": text})
    return entry


def add_answers(artifact: str, body: dict[str, Any]) -> Path:
    """Keep the answers or rollouts of an artifact (`evaluate-KEY`, `rlvr-KEY`) to be shown; returns the entry."""
    entry = folder() / f"answers-{artifact}"
    entry.mkdir(parents=True, exist_ok=True)
    (entry / ARRIVED).unlink(missing_ok=True)  # of an earlier upload of that key, under other runs
    note(entry, {"kind": "answers", "artifact": artifact, **body})
    return entry


def flush(entry: Path, patience: TimeBudget, *, away: int = logging.WARNING) -> bool:
    """Send one entry within the budget; True where MLflow took all of it. What it refuses is set aside.

    Args:
        away: level at which it is said that not everything arrived in time.

    A call that hangs is left behind in its thread; the entry stays locked by it, so that nobody sends it twice at once.
    """
    name = entry.name
    try:
        return patience.run(lambda: _flush(entry, patience))
    except TrackerUnavailable as error:
        log.log(away, "%s: MLflow did not take everything (%s); the rest is kept for `whetstone sync`", name, error)
        return False
    except TrackerRejected as error:
        log.warning(
            "%s: MLflow refused the upload for good: %s. It was set aside in %s", name, error, folder() / "refused"
        )
        return False


def _flush(entry: Path, patience: TimeBudget) -> bool:
    with _lock(entry) as held:
        if not held:
            return False
        try:
            _send(entry, patience)
        except TrackerRejected as error:
            _set_aside(entry, str(error))
            raise
        shutil.rmtree(entry, ignore_errors=True)
        return True


def flush_all(seconds: float | None) -> Flushed:
    """Send everything that waits, oldest first; stops at the first sign that MLflow is away.

    Args:
        seconds: budget of waiting; None takes as long as it takes.
    """
    _adopt()
    done, patience = Flushed(), TimeBudget(seconds)
    entries = [e for e in sorted(folder().glob("*"), key=_age) if e.name != "refused"] if folder().is_dir() else []
    for place, entry in enumerate(entries):
        try:
            sent = patience.run(lambda entry=entry: _flush(entry, patience))  # type: ignore[misc]
        except TrackerUnavailable as error:
            log.warning("MLflow did not take %s (%s); it is kept for `whetstone sync`", entry.name, error)
            done.pending += len(entries) - place
            break
        except TrackerRejected as error:
            done.refused.append(f"{entry.name}: {error}")
            continue
        done.sent += sent
        done.pending += not sent
    return done


def waiting() -> bool:
    """Whether there may be something to send; looks at names only."""
    runs = runs_folder()
    left_behind = (w for w in runs.glob(".work/*") if (runs / w.name).is_dir() and (w / UPLOAD).exists())
    return any(e.name != "refused" for e in folder().glob("*")) or any(left_behind)


def _age(entry: Path) -> float:
    with contextlib.suppress(OSError):
        return entry.stat().st_mtime
    return 0.0


def _send(entry: Path, patience: TimeBudget) -> None:
    if not entry.is_dir():
        raise TrackerRejected("it is a file, and entries of the outbox are folders")
    body = read_object(
        entry / UPLOAD, kind=str, run_id=str, stage=str, key=str, about=dict, tags=dict, time=int,
        summary=dict, metrics=dict, checkpoints=dict, artifact=str, limit=int, steps=dict, model_params=dict, texts=dict,
        file=str, text=str,
    )  # fmt: skip
    kind = (body or {}).get("kind", "stage")
    needed = {
        "stage": ("stage", "key"),
        "close": ("run_id", "status"),
        "pipeline": ("run_id", "status", "summary", "metrics", "time"),
        "answers": ("artifact", "limit", "checkpoints", "time"),
        "text": ("run_id", "file", "text"),
    }
    if body is None or kind not in needed or any(body.get(name) is None for name in needed[kind]):
        raise TrackerRejected(f"its {UPLOAD} is damaged")
    from tasks.tracking import api as tracking

    if kind == "stage":
        _send_stage(entry, body, patience)
    elif kind == "close":
        tracking.close(body["run_id"], body["status"], body.get("tags") or {}, body.get("texts") or {})
    elif kind == "answers":
        _send_answers(entry, body)
    elif kind == "text":
        tracking.store_text(body["run_id"], body["file"], body["text"])
    else:
        checkpoints = body.get("checkpoints") or {}
        for told in (
            body["summary"].get("stages", {}).values()
        ):  # a run that MLflow got later than its artifact's manifest
            told["run_id"] = told.get("run_id") or uploaded(Path(told["artifact"])).run_id
        evaluated = body.get("evaluated") or {}
        answers = {
            names.get(label, label): run
            for name, names in evaluated.items()
            for label, run in uploaded(runs_folder() / name).runs.items()
        }
        about = body | {
            "checkpoints": {
                name: {"model_id": _model(name, held, body.get("experiment") or "")}
                for name, held in checkpoints.items()
            },
            "answers": answers,
        }
        tracking.end_pipeline(body["run_id"], body["status"], about)


def _send_stage(entry: Path, body: dict[str, Any], patience: TimeBudget) -> None:
    from tasks.tracking import api as tracking

    stage, key = body["stage"], body["key"]
    path = artifacts.folder(runs_folder(), stage, key)
    damage_found = damage(path) if path.exists() else "it is gone"
    tracker = tracking.StageTracker(
        body.get("name") or stage, entry, body.get("experiment") or stage, body.get("parent"), body.get("about") or {}
    )
    if damage_found is not None:
        if tracker.run_id:
            tracking.close(
                tracker.run_id, "FAILED", {"whetstone.error": f"the artifact was not uploaded: {damage_found}"}
            )
        raise TrackerRejected(f"the artifact {path} cannot be uploaded: {damage_found}")
    for artifact in (body.get("checkpoints") or {}).values():
        for waiting in sorted(folder().glob(f"{artifact}-*"), key=_age):  # what the stage read comes before it
            if waiting != entry:
                _flush(waiting, patience)
    tracker.send()
    assert tracker.run_id is not None
    experiment = body.get("experiment") or stage
    tags = {"whetstone.key": path.name}
    models = tracking.store(
        tracker.run_id, path, stage, upload_models=body.get("upload_models", True), tags=tags, allow=patience.allow,
        params=body.get("model_params") or {}, steps=body.get("steps") or {},
    )  # fmt: skip
    read = {name: _model(name, held, experiment) for name, held in (body.get("checkpoints") or {}).items()}
    time_ms = body.get("time") or int(_age(path) * 1000)
    scored = kind_of_run(stage).makes == SCORES
    runs = tracking.record_evaluation(tracker.run_id, path, read, time_ms) if scored else {}
    if not scored:
        tracking.link_inputs(tracker.run_id, [m for m in read.values() if m])
    write_atomic(_uploaded(path), json.dumps({"run_id": tracker.run_id, "models": models, "runs": runs}), durable=False)
    tracking.close(tracker.run_id, "FINISHED", tags | (body.get("tags") or {}))


def _send_answers(entry: Path, body: dict[str, Any]) -> None:
    """Answers of an evaluation, each checkpoint's to its own run, or rollouts; how many have arrived is kept beside."""
    from pipelines.data import thumbnails
    from tasks.tracking import api as tracking

    artifact, limit = runs_folder() / body["artifact"], body["limit"]
    sent = uploaded(artifact)
    arrived = read_object(entry / ARRIVED) or {}
    pictures = thumbnails.read([artifact])

    def send(name: str, run_id: str, shown: list[benchmarks.Shown], model: str | None) -> None:
        def save(count: int) -> None:
            arrived[name] = count
            write_atomic(entry / ARRIVED, json.dumps(arrived), durable=False)

        start = arrived.get(name, 0)
        shown = [replace(each, pictures=pictures) for each in shown]
        tracking.send_shown(run_id, shown, model_id=model, time_ms=body["time"], sent=start, save=save)

    for checkpoint, run_id in sent.runs.items():
        held = body["checkpoints"].get(checkpoint)
        model = _model(checkpoint, held, body.get("experiment") or "") if held else None
        send(checkpoint, run_id, [benchmarks.shown(a) for a in benchmarks.answers(artifact, checkpoint, limit)], model)
    if kind_of_run(kind_of(body["artifact"])).rewards and sent.run_id:
        send("rollouts", sent.run_id, rollouts.shown(artifact, limit), None)


def _model(checkpoint: str, held: str, experiment: str) -> str | None:
    """LoggedModel of a checkpoint that a stage read: of an artifact (`sft-KEY`), or of a base model by name (`base:NAME`)."""
    from tasks.tracking import api as tracking

    if held.startswith("base:"):
        return tracking.external_base(experiment, held.removeprefix("base:"))
    sent = uploaded(runs_folder() / held)
    kept = BASE if checkpoint == BASE else kind_of(held)
    model = tracking.model_of(kept, run_id=sent.run_id, model_id=sent.models.get(kept))
    return model[0] if model else None


def _set_aside(entry: Path, reason: str) -> None:
    """Move an entry where nobody tries it again, with the reason beside it."""
    aside = folder() / "refused" / entry.name
    aside.parent.mkdir(parents=True, exist_ok=True)
    if aside.exists():
        aside = aside.with_name(f"{aside.name}-{uuid.uuid4().hex[:8]}")
    entry.rename(aside)
    if aside.is_dir():
        write_atomic(aside / REASON, json.dumps({"reason": reason, "time": time.time()}), durable=False)


def _adopt() -> None:
    """Take over what a killed run left between publishing an artifact and sending it."""
    runs = runs_folder()
    for work in runs.glob(".work/*"):
        body = read_object(work / UPLOAD, stage=str, key=str) if work.is_dir() else None
        if body is None or not (runs / work.name).is_dir() or not body.get("stage"):
            continue
        with _lock(work) as held, stage_lock(runs / ".locks" / work.name) as free:
            if held and free and work.is_dir():
                add(work)


@contextlib.contextmanager
def stage_lock(path: Path) -> Iterator[bool]:
    """Whether nobody works on the stage; keeps it so for the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as handle:
        yield _taken(handle)


@contextlib.contextmanager
def _lock(entry: Path) -> Iterator[bool]:
    """Whether the entry is ours for the block."""
    if not entry.is_dir():
        yield True
        return
    with open(entry / "upload.lock", "ab") as handle:
        yield _taken(handle)


def _taken(handle: Any) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _uploaded(path: Path) -> Path:
    return runs_folder() / ".uploaded" / f"{path.name}.json"


def remember(path: Path, run_id: str) -> None:
    """Note which run of MLflow's an artifact was fetched from; what is known of that run's models stays."""
    if (read_object(_uploaded(path), run_id=str) or {}).get("run_id") == run_id:
        return
    write_atomic(_uploaded(path), json.dumps({"run_id": run_id}), durable=False)


class Uploaded(NamedTuple):
    """What MLflow has of an artifact."""

    run_id: str | None
    models: dict[str, str | None]
    """Checkpoint → LoggedModel id."""
    runs: dict[str, str]
    """Of an evaluation: checkpoint → the run with its scores and answers."""


def uploaded(path: Path) -> Uploaded:
    """What MLflow has of an artifact, as far as this store knows; the run of its manifest where it was sent from elsewhere."""
    body = read_object(_uploaded(path), run_id=str, models=dict, runs=dict) or {}
    models = body.get("models") or read_object(runs_folder() / ".models" / f"{path.name}.json") or {}
    run_id = body.get("run_id") or (read_manifest(path) or {}).get("run_id")
    return Uploaded(run_id if isinstance(run_id, str) else None, _texts(models), _texts(body.get("runs") or {}))


def _texts(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if isinstance(value, str)}


__all__ = [
    "Flushed",
    "TrackerError",
    "Uploaded",
    "add",
    "add_run",
    "add_text",
    "entry_of",
    "flush",
    "flush_all",
    "note",
    "remember",
    "uploaded",
    "waiting",
]
