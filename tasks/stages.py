"""One stage: reuse it where its key is known, else run it, track it, publish it."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.recipe.read import Recipe, resolve
from pipelines.stage.files import REPORT, read_json, write_atomic
from pipelines.stage.report import PROGRESS, SPOOL
from tasks import artifacts, keys, process
from tasks.artifacts import Artifact
from tasks.environment import runs_folder

log = logging.getLogger("whetstone.stages")
MODULES = {"curate": "pipelines.curate", "sft": "pipelines.sft", "rlvr": "pipelines.rlvr", "evaluate": "evaluation"}
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
        return {
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
        wanted = recipe.evaluate.checkpoints if recipe.evaluate else []
        needed = {c for c in wanted if c != "base"}
        if "base" in wanted and recipe.model.fresh is not None:
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
        found, wrong = artifacts.find(runs_folder(), stage, key)
        if found is not None and not forced:
            done[stage] = found
            planned.append(Planned(stage, "reuse", "nothing it reads has changed", key, found))
        else:
            planned.append(Planned(stage, "run", "--fresh" if forced else _why(recipe, stage, parts, wrong), key))
    return planned


def _last(recipe: Recipe, stage: str) -> Path:
    return runs_folder() / ".last" / f"{recipe.name}-{stage}.json"


def _why(recipe: Recipe, stage: str, parts: dict[str, Any], wrong: str | None) -> str:
    if wrong is not None:
        return f"its artifact cannot be used: {wrong}"
    before = read_json(_last(recipe, stage))
    if before is None:
        return "it has not run before"
    changes = keys.difference(before, json.loads(json.dumps(parts, default=str)))
    if not changes:
        return "its artifact is gone"
    more = f" (and {len(changes) - 3} more)" if len(changes) > 3 else ""
    return "; ".join(changes[:3]) + more


def run_stage(
    recipe: Recipe,
    stage: str,
    done: dict[str, Artifact],
    *,
    parent: str | None,
    fresh: bool = False,
    show: Show | None = None,
) -> StageResult:
    """Reuse the stage or run it to its end.

    Args:
        done: artifacts of the stages before it.
        parent: MLflow run of the pipeline.
        fresh: run even where an artifact is there.
        show: progress for a terminal.

    Raises:
        StageFailed: the stage ended without a result.
    """
    began = time.monotonic()
    sources = inputs_of(recipe, stage)
    parts = keys.key_parts(recipe, stage, {name: done[s].digest for name, s in sources.items()})
    key = keys.stage_key(parts)

    def waiting(who: str) -> None:
        log.warning("%s: waits for %s, which works on the same stage", stage, who)

    with process.lock(runs_folder() / ".locks" / f"{stage}-{key}", parent, waiting):
        found, wrong = artifacts.find(runs_folder(), stage, key)
        if found is None and not fresh:
            found = _from_store(recipe, stage, key)
        if found is not None and not fresh:
            _remember(recipe, stage, parts)
            return StageResult(stage, "reused", found, "nothing it reads has changed", time.monotonic() - began)
        why = "--fresh" if fresh else _why(recipe, stage, parts, wrong)
        result = _run(recipe, stage, key, parts, done, why, parent, fresh, show)
        _remember(recipe, stage, parts)
        result.seconds = time.monotonic() - began
        return result


def _remember(recipe: Recipe, stage: str, parts: dict[str, Any]) -> None:
    write_atomic(_last(recipe, stage), json.dumps(parts, default=str, sort_keys=True), durable=False)


def _from_store(recipe: Recipe, stage: str, key: str) -> Artifact | None:
    """Another machine's result: fetched from MLflow, verified, published locally."""
    from tasks import tracking

    remote = tracking.find_remote(stage, key, experiment_name(recipe))
    if remote is None:
        return None
    into = runs_folder() / ".fetched" / f"{stage}-{key}"
    shutil.rmtree(into, ignore_errors=True)
    try:
        from pipelines.stage.files import damage, publish

        if not tracking.fetch(*remote, into) or damage(into) is not None:
            return None
        publish(into, artifacts.folder(runs_folder(), stage, key))
    finally:
        shutil.rmtree(into, ignore_errors=True)
    return artifacts.find(runs_folder(), stage, key)[0]


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
) -> StageResult:
    from tasks import tracking

    work = runs_folder() / ".work" / f"{stage}-{key}"
    if fresh:
        shutil.rmtree(work, ignore_errors=True)
    sources = inputs_of(recipe, stage)
    about = _about(recipe, stage, key, parts, {name: done[s] for name, s in sources.items()})
    tracker = tracking.StageTracker(stage, work, experiment_name(recipe), parent, about)
    began = time.monotonic()
    before = _seconds_so_far(work)

    def tick() -> None:
        tracker.tick()
        if show:
            show(stage, read_json(work / PROGRESS) or {})

    _clear_scraps(work)
    try:
        numbers = process.run(MODULES[stage], work, _job(recipe, stage, parts, sources, done), tick)
    except BaseException as error:
        _seconds_so_far(work, before + time.monotonic() - began)
        if tracker.tick(now=True) and tracker.run_id:
            status = "FAILED" if isinstance(error, Exception) else "KILLED"
            tracking.close(tracker.run_id, status, {"whetstone.error": str(error)})
        raise
    finally:
        if show:
            show(stage, None)
    seconds = before + time.monotonic() - began
    _report_folder(stage, work)
    arrived = tracker.drain(recipe.tracking.timeout_s)
    body = {
        "parts": parts,
        "numbers": numbers,
        "seconds": round(seconds, 3),
        "recipe": recipe.name,
        "run_id": tracker.run_id,
    }
    artifact = artifacts.put(work / "out", runs_folder(), stage, key, body)
    result = StageResult(stage, "ran", artifact, why, seconds)
    debt = {"artifact": str(artifact.path), "stage": stage, "key": key, "upload_models": recipe.tracking.upload_models}
    write_atomic(work / "debt.json", json.dumps(debt))
    if arrived and settle(work, tracker):
        result.models = _models(artifact.path)
        shutil.rmtree(work, ignore_errors=True)
    else:
        log.warning("%s: MLflow is still away; what it has not seen is kept and sent at the next start", stage)
        _park(work)
    return result


def _clear_scraps(work: Path) -> None:
    """A work folder; what an attempt without commits left in `out` would end up in the artifact, so it goes."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "checkpoints").exists():
        shutil.rmtree(work / "out", ignore_errors=True)


def _seconds_so_far(work: Path, value: float | None = None) -> float:
    """Time already spent on this stage by runs that did not finish."""
    path = work / "seconds.json"
    if value is not None and work.exists():
        write_atomic(path, json.dumps(value), durable=False)
    return float(read_json(path) or 0.0)


def _job(
    recipe: Recipe, stage: str, parts: dict[str, Any], sources: dict[str, str], done: dict[str, Artifact]
) -> dict[str, Any]:
    job: dict[str, Any] = {
        "stage": stage,
        "settings": parts["settings"],
        "seed": recipe.seed,
        "threads": recipe.threads,
        "inputs": {name: str(done[s].path) for name, s in sources.items()},
    }
    own = getattr(recipe, stage)
    free = {k: v for k, v in own.model_dump().items() if k not in resolve(own)}
    job["settings"] = {**parts["settings"], stage: {**parts["settings"][stage], **free}}
    if "commit" in own.model_fields:
        job["settings"][stage]["commit"] = own.commit.model_dump()
    if stage == "curate" and recipe.evaluate is not None and recipe.curate.decontaminate is not None:
        job["benchmark_texts"] = {"function": "evaluation.documents:questions", "evaluate": resolve(recipe.evaluate)}
    if recipe.model.fresh is None:
        job["settings"]["model"] = {**job["settings"]["model"], "path": recipe.model.path}
    else:
        job["settings"]["model"] = {**job["settings"]["model"], "fresh": recipe.model.fresh.model_dump()}
    return job


def _about(recipe: Recipe, stage: str, key: str, parts: dict[str, Any], inputs: dict[str, Artifact]) -> dict[str, Any]:
    from tasks.tracking import flatten

    params = dict(flatten(parts["settings"])) | {"seed": str(recipe.seed)}
    params |= {f"version.{k}": v for k, v in parts["versions"].items()}
    datasets = []
    if "data" in inputs:
        data = inputs["data"]
        rows = read_json(data.path / "data.json") or {}
        datasets.append({
            "name": recipe.name, "digest": data.digest[:36], "source": str(data.path), "context": "training",
            "profile": json.dumps(rows.get("splits", {})),
        })  # fmt: skip
    for task in recipe.evaluate.tasks if stage == "evaluate" and recipe.evaluate else []:
        used = {"name": task.name, "digest": key[:36], "source": task.name, "context": "evaluation"}
        datasets.append(used)
    tags = {"whetstone.recipe": recipe.name, "whetstone.seed": str(recipe.seed)}
    tags |= {f"whetstone.input.{name}": f"{a.stage}-{a.key}" for name, a in inputs.items()}
    tags |= {f"whetstone.input_run.{name}": a.run_id for name, a in inputs.items() if a.run_id}
    return {"name": f"{stage}-{recipe.name}", "params": params, "datasets": datasets, "tags": tags}


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


def settle(work: Path, tracker: Any = None) -> bool:
    """Tell MLflow everything about a finished stage; True where it took all of it. Safe to repeat."""
    from tasks import tracking

    debt = read_json(work / "debt.json")
    if debt is None:
        return True
    path = Path(debt["artifact"])
    tracker = tracker or tracking.StageTracker(debt["stage"], work, "", None, {})
    if tracker.run_id is None or not path.exists() or not tracker.tick(now=True):
        return tracker.run_id is None and not path.exists()
    try:
        stored = tracking.store(
            tracker.run_id, path, debt["stage"], upload_models=debt["upload_models"],
            tags={"whetstone.key": f"{debt['stage']}-{debt['key']}"},
        )  # fmt: skip
        write_atomic(runs_folder() / ".models" / f"{path.name}.json", json.dumps(stored), durable=False)
        tracking.close(tracker.run_id, "FINISHED", {"whetstone.key": f"{debt['stage']}-{debt['key']}"})
    except tracking.AWAY as error:
        log.warning("%s: MLflow did not take the files: %s", debt["stage"], error)
        return False
    (work / "debt.json").unlink()
    return True


def _park(work: Path) -> None:
    owed = runs_folder() / ".owed" / f"{work.name}-{int(time.time())}"
    owed.parent.mkdir(parents=True, exist_ok=True)
    work.rename(owed)


def settle_all() -> int:
    """Send what earlier runs could not; returns how many stages are still owed."""
    owed = runs_folder() / ".owed"
    left = 0
    for work in sorted(owed.glob("*")) if owed.exists() else []:
        if settle(work):
            shutil.rmtree(work, ignore_errors=True)
        else:
            left += 1
    return left


def _models(path: Path) -> dict[str, str | None]:
    """LoggedModel ids of an artifact's checkpoints, where MLflow has them."""
    return read_json(runs_folder() / ".models" / f"{path.name}.json") or {}


def logged_model(artifact: Artifact, checkpoint: str) -> str | None:
    """LoggedModel id of a checkpoint of an artifact."""
    return _models(artifact.path).get(checkpoint)
