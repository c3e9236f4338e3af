"""One stage: reuse it where its key is known, else run it, track it, publish it."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.recipe.read import Recipe, resolve
from pipelines.recipe.secrets import redact
from pipelines.stage.files import REPORT, read_json, read_object, write_atomic
from pipelines.stage.report import PROGRESS, SPOOL, lines_of
from tasks import alarms, artifacts, fetch, keys, outbox, process, record
from tasks.artifacts import Artifact
from tasks.environment import runs_folder
from tasks.names import flatten
from tasks.patience import Patience, TrackerError

log = logging.getLogger("whetstone.stages")
MODULES = {"curate": "pipelines.curate", "sft": "pipelines.sft", "rlvr": "pipelines.rlvr", "evaluate": "evaluation"}
Slot = Callable[[str], contextlib.AbstractContextManager[None]]
"""Given a stage, what to hold while it computes, such as a place on the GPU."""
HANDED_ON = ("the best weights are handed on", "the last good weights are handed on")
"""What a stage writes into its spool, with the step, when the last weights are not those that it hands on."""
Show = Callable[[str, dict[str, Any] | None], None]
"""Called with (stage, progress), {} while nothing is known; None when the stage has ended."""


@dataclass
class StageResult:
    """What became of a stage in this pipeline run."""

    stage: str
    status: str
    """"ran" or "reused"."""
    artifact: Artifact
    why: str
    seconds: float
    models: dict[str, str | None] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """The stage's entry in the summary file."""
        alarms_raised = {"alarms": self.artifact.alarms} if self.artifact.alarms else {}
        return alarms_raised | {
            "status": self.status,
            "key": self.artifact.key,
            "seconds": round(self.seconds, 3),
            "artifact": str(self.artifact.path),
            "run_id": self.artifact.run_id,
            "why": self.why,
        }


@dataclass(frozen=True)
class Planned:
    """What a pipeline run would do with a stage."""

    stage: str
    action: str
    """"reuse" or "run"."""
    why: str
    key: str | None = None
    artifact: Artifact | None = None


def inputs_of(recipe: Recipe, stage: str) -> dict[str, str]:
    """Input name → the stage that makes it."""
    if stage == "curate":
        return {}
    if stage == "evaluate":
        checkpoints = recipe.evaluate.checkpoints if recipe.evaluate else []
        needed = {c for c in checkpoints if c != "base"}
        if "base" in checkpoints and recipe.model.fresh is not None:
            needed.add("sft")
        return {s: s for s in ("sft", "rlvr") if s in needed and getattr(recipe, s) is not None}
    inputs = {"data": "curate"}
    if stage == "rlvr" and recipe.sft is not None:
        inputs["sft"] = "sft"
    return inputs


def plan(recipe: Recipe, *, fresh: bool = False, only: list[str] | None = None) -> list[Planned]:
    """For each stage: reuse or run, and why. Reads and verifies artifacts, computes nothing."""
    done: dict[str, Artifact] = {}
    planned: list[Planned] = []
    for stage in recipe.stages():
        sources = inputs_of(recipe, stage)
        waiting = [s for s in sources.values() if s not in done]
        forced = fresh and (only is None or stage in only)
        if waiting:
            planned.append(Planned(stage, "run", f"{' and '.join(waiting)} will run"))
            continue
        parts = keys.key_parts(recipe, stage, {name: done[s].digest for name, s in sources.items()})
        key = keys.stage_key(parts)
        artifact, damage = artifacts.find(runs_folder(), stage, key)
        if artifact is not None and not forced:
            done[stage] = artifact
            planned.append(Planned(stage, "reuse", "nothing it reads has changed", key, artifact))
        else:
            planned.append(Planned(stage, "run", "--fresh" if forced else _why(recipe, stage, parts, damage), key))
    return planned


def bring(recipe: Recipe, chosen: list[str]) -> None:
    """Fetch from MLflow the finished stages that `chosen` reads and that this project folder lacks."""
    needed = _read_by(recipe, chosen)
    done: dict[str, Artifact] = {}
    patience = Patience(recipe.tracking.timeout_s)
    for stage in recipe.stages():
        sources = inputs_of(recipe, stage)
        if stage not in needed or any(s not in done for s in sources.values()):
            continue
        key = keys.stage_key(keys.key_parts(recipe, stage, {name: done[s].digest for name, s in sources.items()}))
        with process.lock(runs_folder() / ".locks" / artifacts.name_of(stage, key)):
            artifact = artifacts.find(runs_folder(), stage, key)[0] or _from_store(recipe, stage, key, patience)
        if artifact is not None:
            done[stage] = artifact


def _read_by(recipe: Recipe, chosen: list[str]) -> set[str]:
    """Stages outside the selection that it reads, with all that those were made from."""
    needed: set[str] = set()
    waiting = list(chosen)
    while waiting:
        sources = set(inputs_of(recipe, waiting.pop()).values()) - needed - set(chosen)
        needed |= sources
        waiting += sources
    return needed


def _last(recipe: Recipe, stage: str) -> Path:
    return runs_folder() / ".last" / f"{recipe.name}-{stage}.json"


def _why(recipe: Recipe, stage: str, parts: dict[str, Any], damage: str | None) -> str:
    if damage is not None:
        return f"its artifact cannot be used: {damage}"
    before = read_object(_last(recipe, stage))
    if before is None:
        return "it has not run before"
    changes = keys.difference(before, json.loads(json.dumps(parts, default=str)))
    if not changes:
        return "its artifact is gone"
    rest = f" (and {len(changes) - 3} more)" if len(changes) > 3 else ""
    return "; ".join(changes[:3]) + rest


def run_stage(
    recipe: Recipe,
    stage: str,
    done: dict[str, Artifact],
    *,
    parent: str | None,
    fresh: bool = False,
    show: Show | None = None,
    slot: Slot = lambda _: contextlib.nullcontext(),
) -> StageResult:
    """Reuse the stage or run it to its end.

    Args:
        done: artifacts of the stages before it.
        parent: MLflow run of the pipeline.
        fresh: run even where an artifact is there.
        show: progress for a terminal.
        slot: held while the stage computes.

    Raises:
        StageFailed: the stage ended without a result.
    """
    began = time.monotonic()
    sources = inputs_of(recipe, stage)
    parts = keys.key_parts(recipe, stage, {name: done[s].digest for name, s in sources.items()})
    key = keys.stage_key(parts)
    patience = Patience(recipe.tracking.timeout_s)

    def waiting(who: str) -> None:
        log.warning("%s: waits for %s, which works on the same stage", stage, who)

    with process.lock(runs_folder() / ".locks" / artifacts.name_of(stage, key), parent, waiting):
        artifact, damage = artifacts.find(runs_folder(), stage, key)
        if artifact is None and not fresh:
            artifact = _from_store(recipe, stage, key, patience)
        if artifact is not None and not fresh:
            _remember(recipe, stage, parts)
            return StageResult(stage, "reused", artifact, "nothing it reads has changed", time.monotonic() - began)
        why = "--fresh" if fresh else _why(recipe, stage, parts, damage)
        result = _run(recipe, stage, key, parts, done, why, parent, fresh, show, slot, patience)
        _remember(recipe, stage, parts)
        result.seconds = time.monotonic() - began
        return result


def _remember(recipe: Recipe, stage: str, parts: dict[str, Any]) -> None:
    write_atomic(_last(recipe, stage), json.dumps(parts, default=str, sort_keys=True), durable=False)


def _from_store(recipe: Recipe, stage: str, key: str, patience: Patience) -> Artifact | None:
    """Another machine's result; None where MLflow has none that can be used, or does not say."""
    try:
        artifact, mismatch = fetch.from_mlflow(stage, key, experiment_name(recipe), patience)
    except TrackerError as error:
        log.warning("%s: could not look for its artifact in MLflow: %s", stage, error)
        return None
    if mismatch is not None:
        log.warning("%s: the artifact that MLflow holds for it is not used: %s", stage, mismatch)
    return artifact


def experiment_name(recipe: Recipe) -> str:
    """MLflow experiment of a recipe."""
    return recipe.tracking.experiment or recipe.name


def _run(
    recipe: Recipe,
    stage: str,
    key: str,
    parts: dict[str, Any],
    done: dict[str, Artifact],
    why: str,
    parent: str | None,
    fresh: bool,
    show: Show | None,
    slot: Slot,
    patience: Patience,
) -> StageResult:
    from tasks import tracking

    work = runs_folder() / ".work" / artifacts.name_of(stage, key)
    if fresh:
        shutil.rmtree(work, ignore_errors=True)
    sources = inputs_of(recipe, stage)
    about = _about(recipe, stage, key, parts, {name: done[s] for name, s in sources.items()})
    tracker = tracking.StageTracker(stage, work, experiment_name(recipe), parent, about)
    began = time.monotonic()
    before = _seconds_so_far(work)

    tick = _ticker(stage, work, tracker, show)
    _clear_scraps(work)
    try:
        with slot(stage):
            metrics = process.run(MODULES[stage], work, job_of(recipe, stage, sources, done), tick)
    except BaseException as error:
        _seconds_so_far(work, before + time.monotonic() - began)
        _close_run(tracker, patience, error)
        raise
    finally:
        tick()
        if show:
            show(stage, None)
    seconds = before + time.monotonic() - began
    _report_folder(stage, work)
    tracker.finish(patience)
    measured = int(time.time() * 1000)
    body = {
        "parts": parts,
        "numbers": metrics,
        "seconds": round(seconds, 3),
        "recipe": recipe.name,
        "run_id": tracker.run_id,
        "pipeline_run": parent,
        "alarms": alarms.alarms_of(work / SPOOL),
    }
    upload = {"stage": stage, "key": key, "parent": parent, "about": about, "time": measured}
    upload |= _upload(recipe, stage, done, _steps(work, metrics))
    outbox.note(work, upload)
    artifact = artifacts.put(work / "out", runs_folder(), stage, key, body)
    outbox.flush(outbox.add(work), patience)
    return StageResult(stage, "ran", artifact, why, seconds, outbox.uploaded(artifact.path).models)


def _upload(recipe: Recipe, stage: str, done: dict[str, Artifact], steps: int | None) -> dict[str, Any]:
    """What the upload of a stage needs to know of its recipe."""
    return {
        "kind": "stage", "upload_models": recipe.tracking.upload_models, "experiment": experiment_name(recipe),
        "steps": {} if steps is None else {stage: steps}, "checkpoints": checkpoints_read(recipe, stage, done),
        "model_params": record.params(recipe, ("model", stage)),
    }  # fmt: skip


def _ticker(stage: str, work: Path, tracker: Any, show: Show | None) -> Callable[[], None]:
    """What is done several times a second while a stage runs: its metrics are sent, its alarms said, its progress shown."""
    teller = alarms.Teller(stage, work)

    def tick() -> None:
        tracker.tick()
        teller.tick()
        if show:
            show(stage, _progress(work))

    return tick


def _progress(work: Path) -> dict[str, Any]:
    kinds = {"done": (int, float), "total": (int, float), "rate": (int, float), "what": str, "unit": str}
    return read_object(work / PROGRESS, **kinds) or {}  # type: ignore[arg-type]


def _close_run(tracker: Any, patience: Patience, error: BaseException) -> None:
    """Mark the MLflow run of a stage that ended without a result; kept in the outbox where MLflow is away."""
    from tasks import tracking

    patience = Patience(min(patience.left or 0.0, 5.0))  # somebody waits for the message, or has pressed Ctrl+C
    tracker.finish(patience)
    if tracker.run_id is None:
        return
    status, tags = "FAILED" if isinstance(error, Exception) else "KILLED", {"whetstone.error": redact(error)}
    try:
        patience.run(lambda: tracking.close(tracker.run_id, status, tags))
    except TrackerError:
        outbox.add_run(tracker.run_id, {"kind": "close", "status": status, "tags": tags})


def _clear_scraps(work: Path) -> None:
    """A work folder; what an attempt without commits left in `out` would end up in the artifact, so it goes."""
    work.mkdir(parents=True, exist_ok=True)
    (work / outbox.UPLOAD).unlink(missing_ok=True)
    if not (work / "checkpoints").exists():
        shutil.rmtree(work / "out", ignore_errors=True)


def _seconds_so_far(work: Path, value: float | None = None) -> float:
    """Time already spent on this stage by runs that did not finish."""
    path = work / "seconds.json"
    if value is not None and work.exists():
        write_atomic(path, json.dumps(value), durable=False)
    stored = read_json(path)
    return float(stored) if isinstance(stored, int | float) and 0 <= stored < 1e12 else 0.0


def job_of(recipe: Recipe, stage: str, sources: dict[str, str], done: dict[str, Artifact]) -> dict[str, Any]:
    """What `job.json` of a stage says; `done` are the artifacts of the stages before it."""
    job: dict[str, Any] = {
        "stage": stage,
        "settings": {stage: getattr(recipe, stage).model_dump(), "model": recipe.model.model_dump()},
        "seed": recipe.seed_of(stage),
        "threads": recipe.threads,
        "sandbox": recipe.sandbox,
        "inputs": {name: str(done[s].path) for name, s in sources.items()},
    }
    if stage == "curate" and recipe.evaluate is not None and recipe.curate.decontaminate is not None:
        job["benchmark_texts"] = {"function": "evaluation.documents:questions", "evaluate": resolve(recipe.evaluate)}
    return job


def checkpoints_read(recipe: Recipe, stage: str, done: dict[str, Artifact]) -> dict[str, str]:
    """Checkpoints that a stage reads: name → the artifact that holds it (`sft-KEY`), or `base:NAME` for the recipe's own base.

    Args:
        done: artifacts of the stages before it.
    """
    own_base = f"base:{recipe.model.path}" if recipe.model.path else None
    if stage == "evaluate":
        wanted = recipe.evaluate.checkpoints if recipe.evaluate else []
        held = {
            "base": own_base or _name(done.get("sft")),
            "sft": _name(done.get("sft")),
            "rlvr": _name(done.get("rlvr")),
        }
        return {name: place for name, place in held.items() if name in wanted and place}
    sft = _name(done.get("sft"))
    if stage == "rlvr" and sft:
        return {"sft": sft}
    return {"base": own_base} if own_base and stage in ("sft", "rlvr") else {}


def _name(artifact: Artifact | None) -> str | None:
    return artifact.name if artifact else None


def _steps(work: Path, metrics: dict[str, float]) -> int | None:
    """Optimizer steps behind the weights that a stage hands on; None for a stage that trains nothing."""
    if "steps" not in metrics:
        return None
    best = [e["step"] for e in lines_of(work / SPOOL) if e["kind"] == "event" and e.get("text") in HANDED_ON]
    return int(best[-1] if best else metrics["steps"])


def _about(recipe: Recipe, stage: str, key: str, parts: dict[str, Any], inputs: dict[str, Artifact]) -> dict[str, Any]:
    params = dict(flatten(keys.settings_of(recipe, stage))) | {"seed": str(recipe.seed_of(stage))}
    params |= {f"version.{k}": v for k, v in parts["versions"].items()}
    datasets = [training_data(recipe, inputs["data"])] if "data" in inputs else []
    tags = {"whetstone.recipe": recipe.name, "whetstone.seed": str(recipe.seed_of(stage)), **record.git()}
    tags |= {f"whetstone.input.{name}": a.name for name, a in inputs.items()}
    tags |= {f"whetstone.input_run.{name}": a.run_id for name, a in inputs.items() if a.run_id}
    models = [outbox.uploaded(a.path).models.get(a.stage) for a in inputs.values()]
    about = {"name": f"{stage}-{recipe.name}", "params": params, "datasets": datasets, "tags": tags}
    return about | {"models": [m for m in models if m]}


def training_data(recipe: Recipe, data: Artifact) -> dict[str, Any]:
    """The curated data as a dataset of MLflow's."""
    rows = read_object(data.path / "data.json") or {}
    return {
        "name": recipe.name, "digest": data.digest[:36], "source": str(data.path), "context": "training",
        "profile": json.dumps(rows.get("splits", {})),
    }  # fmt: skip


def _report_folder(stage: str, work: Path) -> None:
    """Metrics, log and pictures go with the artifact, outside its digest."""
    report = work / "out" / REPORT
    report.mkdir(parents=True, exist_ok=True)
    for name in (SPOOL, "system.jsonl", process.LOG):
        if (work / name).exists():
            shutil.copy2(work / name, report / name)
    from evaluation import plots

    try:
        plots.curves(work / SPOOL, report, stage)
    except Exception as error:
        log.warning("%s: no pictures were drawn: %s", stage, error)
