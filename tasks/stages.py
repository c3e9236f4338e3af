"""One stage: reuse it where its key is known, else run it, track it, publish it."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation import plots
from pipelines.base import names, plugins
from pipelines.base.errors import UserError
from pipelines.base.files import REPORT, read_json, read_object, write_atomic
from pipelines.base.secrets import redact
from pipelines.recipe import references
from pipelines.recipe.read import Recipe
from pipelines.recipe.stage_checks import launched
from pipelines.recipe.stage_kind import BASE, DATA, MODEL, Node, brought_by
from pipelines.stage.report import HANDED_ON, PROGRESS, SPOOL, VISIBLE, lines_of
from tasks import achieved, keys, planning, process
from tasks import prestart as ahead
from tasks.environment import runs_folder
from tasks.planning import Expected, Planned
from tasks.store import artifacts
from tasks.store.artifacts import Artifact
from tasks.tracking import alarms, fetch, outbox, record
from tasks.tracking.names import flatten
from tasks.tracking.time_budget import TimeBudget, TrackerError

if TYPE_CHECKING:
    from tasks.launched import Launcher
    from tasks.tracking import mirrors

log = logging.getLogger("whetstone.stages")
Slot = Callable[[str], contextlib.AbstractContextManager[None]]
"""Given a kind of stage, what to hold while it computes, such as a place on the GPU."""
Show = Callable[[str, dict[str, Any] | None], None]
"""Called with (stage, progress), {} while nothing is known; None when the stage has ended. The last progress has `achieved` or, where
there is no result, `ending`: "stopped" or "failed"."""


@dataclass
class StageResult:
    """What became of a stage in this pipeline run."""

    stage: str
    """Its name in the recipe; its kind is the artifact's."""
    status: str
    """"ran" or "reused"."""
    artifact: Artifact
    why: str
    seconds: float
    models: dict[str, str | None] = field(default_factory=dict)
    waited: float = 0.0
    """Seconds of these in which it had no machine: others held the GPU, or its job was in a queue."""

    def summary(self) -> dict[str, Any]:
        """The stage's entry in the summary file."""
        outcome = achieved.of_artifact(self.artifact.stage, self.artifact.path)
        waited = round(self.waited) or None
        optional = {"alarms": self.artifact.alarms, "achieved": outcome, "makes": self.artifact.makes, "waited": waited}
        return {name: value for name, value in optional.items() if value} | {
            "status": self.status,
            "kind": self.artifact.stage,
            "key": self.artifact.key,
            "seconds": round(self.seconds, 3),
            "artifact": str(self.artifact.path),
            "run_id": self.artifact.run_id,
            "why": self.why,
        }


def inputs_of(recipe: Recipe, stage: str) -> dict[str, str]:
    """Input label → the stage that makes it."""
    return recipe.node(stage).inputs


def plan(recipe: Recipe, *, fresh: bool = False, only: list[str] | None = None) -> list[Planned]:
    """For each stage: reuse or run, and why. Reads and verifies artifacts, computes nothing.

    What reads data that are curated again is planned to run; where it is reused if the rows stay the same, its reason says so.
    """
    done: dict[str, Artifact] = {}
    expected = Expected(recipe)
    planned: list[Planned] = []
    for stage in recipe.stage_names():
        sources = inputs_of(recipe, stage)
        waiting = list(dict.fromkeys(s for s in sources.values() if s not in done))
        forced = fresh and (only is None or stage in only)
        if waiting:
            why = f"{planning.listed(waiting)} will run"
            planned.append(Planned(stage, "run", why) if forced else expected.waits(stage, waiting, done))
            continue
        parts = keys.key_parts(recipe, stage, {name: done[s].digest for name, s in sources.items()})
        key = keys.stage_key(parts)
        artifact, damage = artifacts.find(runs_folder(), _kind(recipe, stage), key)
        if artifact is not None and not forced:
            done[stage] = artifact
            planned.append(Planned(stage, "reuse", "nothing it reads has changed", key, artifact))
        else:
            planned.append(
                Planned(stage, "run", "--fresh" if forced else planning.why(recipe, stage, parts, damage), key)
            )
            expected.runs(stage)
    return planned


def fetch_inputs(recipe: Recipe, chosen: list[str]) -> None:
    """Fetch from MLflow the finished stages that `chosen` reads and that this project folder lacks."""
    needed = _read_by(recipe, chosen)
    done: dict[str, Artifact] = {}
    patience = TimeBudget(recipe.tracking.timeout_s)
    for stage in recipe.stage_names():
        sources, kind = inputs_of(recipe, stage), _kind(recipe, stage)
        if stage not in needed or any(s not in done for s in sources.values()):
            continue
        key = keys.stage_key(keys.key_parts(recipe, stage, {name: done[s].digest for name, s in sources.items()}))
        with process.lock(runs_folder() / ".locks" / artifacts.name_of(kind, key)):
            artifact = artifacts.find(runs_folder(), kind, key)[0] or _from_store(recipe, kind, key, patience)
        if artifact is not None:
            done[stage] = artifact


def _kind(recipe: Recipe, stage: str) -> str:
    return recipe.graph[stage].kind


def _read_by(recipe: Recipe, chosen: list[str]) -> set[str]:
    """Stages outside the selection that it reads, with all that those were made from."""
    needed: set[str] = set()
    waiting = list(chosen)
    while waiting:
        sources = set(inputs_of(recipe, waiting.pop()).values()) - needed - set(chosen)
        needed |= sources
        waiting += sources
    return needed


def run_stage(
    recipe: Recipe,
    stage: str,
    done: dict[str, Artifact],
    *,
    parent: str | None,
    fresh: bool = False,
    show: Show | None = None,
    slot: Slot = lambda _: contextlib.nullcontext(),
    later: Sequence[str] = (),
    run_name: str = "",
) -> StageResult:
    """Reuse the stage or run it to its end.

    Args:
        done: artifacts of the stages before it.
        parent: MLflow run of the pipeline.
        fresh: run even where an artifact is there.
        show: progress for a terminal.
        slot: held while the stage computes.
        later: the stages that come after it, in order; the process of the first of them that may run is started meanwhile.
        run_name: the pipeline's, for the stage's run in MLflow; the recipe's unless given.

    Raises:
        StageFailed: the stage ended without a result.
    """
    began = time.monotonic()
    node = recipe.node(stage)
    kind = node.kind.name
    parts = keys.key_parts(recipe, stage, {label: done[s].digest for label, s in node.inputs.items()})
    key = keys.stage_key(parts)
    patience = TimeBudget(recipe.tracking.timeout_s)

    def waiting(who: str) -> None:
        log.warning("%s: waits for %s, which works on the same stage", stage, who)

    with process.lock(runs_folder() / ".locks" / artifacts.name_of(kind, key), parent, waiting):
        artifact, damage = artifacts.find(runs_folder(), kind, key)
        if artifact is None and not fresh:
            artifact = _from_store(recipe, kind, key, patience)
        if artifact is not None and not fresh:
            ahead.end()
            planning.remember(recipe, stage, parts)
            return StageResult(stage, "reused", artifact, "nothing it reads has changed", time.monotonic() - began)
        why = "--fresh" if fresh else planning.why(recipe, stage, parts, damage)
        about = _about(node, parts, {label: done[s] for label, s in node.inputs.items()}, run_name)
        result = _run(node, key, parts, done, why, parent, fresh, show, slot, patience, later, about)
        planning.remember(recipe, stage, parts)
        result.seconds = time.monotonic() - began
        return result


def _from_store(recipe: Recipe, kind: str, key: str, patience: TimeBudget) -> Artifact | None:
    """Another machine's result; None where MLflow has none that can be used, or does not say."""
    try:
        artifact, mismatch = fetch.from_mlflow(kind, key, experiment_name(recipe), patience)
    except TrackerError as error:
        log.warning("%s: could not look for its artifact in MLflow: %s", kind, error)
        return None
    if mismatch is not None:
        log.warning("%s: the artifact that MLflow holds for it is not used: %s", kind, mismatch)
    return artifact


def experiment_name(recipe: Recipe) -> str:
    """MLflow experiment of a recipe."""
    return recipe.tracking.experiment or recipe.name


def _run(
    node: Node,
    key: str,
    parts: dict[str, Any],
    done: dict[str, Artifact],
    why: str,
    parent: str | None,
    fresh: bool,
    show: Show | None,
    slot: Slot,
    patience: TimeBudget,
    later: Sequence[str],
    about: dict[str, Any],
) -> StageResult:
    from tasks.tracking import api as tracking
    from tasks.tracking import mirrors  # a plan starts no stage

    recipe, stage, kind = node.recipe, node.name, node.kind.name
    work = runs_folder() / ".work" / artifacts.name_of(kind, key)
    launcher = _launcher(node, work, fresh)
    if fresh:
        shutil.rmtree(work, ignore_errors=True)
    tracker = tracking.StageTracker(stage, work, experiment_name(recipe), parent, about)
    mirrored = mirrors.begin(node, key, work, parent, about)
    asked = began = time.monotonic()
    before = _seconds_so_far(work)
    tick = _ticker(node, work, (tracker, mirrored), show, lambda: _begin_next(recipe, later, done, fresh))
    (work / outbox.UPLOAD).unlink(missing_ok=True)
    last: dict[str, str] = {}
    try:
        with contextlib.nullcontext() if launcher else slot(kind):
            began = time.monotonic()  # what it waited for is no part of what it takes
            take = partial(ahead.take, node)
            metrics = process.run(node.kind.module, work, job_of(node, done), tick, take, launcher)
        outcome = achieved.achieved(kind, work / SPOOL)
        last = {"achieved": outcome}
    except BaseException as error:
        last = {"ending": process.ending_of(error)}
        _seconds_so_far(work, before + _since(began, launcher))
        error = _under_its_name(error, node)
        _close_run(tracker, mirrored, patience, error, process.log_end(work))
        raise error from None
    finally:
        tick()
        if show:
            show(stage, _progress(work) | last)
            show(stage, None)
    seconds = before + _since(began, launcher)
    _report_folder(kind, work)
    tracker.finish(patience)
    body = _manifest(node, parts, work) | {"numbers": metrics, "seconds": round(seconds, 3), "run_id": tracker.run_id}
    upload: dict[str, Any] = {"stage": kind, "name": stage, "key": key, "parent": parent, "about": about}
    upload |= _upload(node, done, _steps(work, metrics)) | {"tags": {"whetstone.achieved": outcome} if outcome else {}}
    upload |= {"time": int(time.time() * 1000)}
    outbox.note(work, upload)
    artifact = artifacts.put(work / "out", runs_folder(), kind, key, body | {"pipeline_run": parent})
    mirrored.finish("FINISHED", artifact.path)
    outbox.flush(outbox.add(work), patience)
    waited = began - asked + (launcher.waited_s if launcher else 0.0)
    return StageResult(stage, "ran", artifact, why, seconds, outbox.uploaded(artifact.path).models, waited)


def _launcher(node: Node, work: Path, fresh: bool) -> Launcher | None:
    """What runs the stage elsewhere; what an earlier pipeline has left there for its work folder is ended where it is of no use."""
    if not launched(node) and not process.launched_before(work):
        return None
    from tasks.launchers import launcher_of

    return launcher_of(node, work, fresh)


def _since(began: float, launcher: Launcher | None) -> float:
    """Seconds of work since a moment: waiting for a machine is none."""
    return time.monotonic() - began - (launcher.waited_s if launcher else 0.0)


def _manifest(node: Node, parts: dict[str, Any], work: Path) -> dict[str, Any]:
    """What the manifest of an artifact says of the stage that made it."""
    body = {"parts": parts, "recipe": node.recipe.name, "name": node.name, "alarms": alarms.alarms_of(work / SPOOL)}
    return body | ({"makes": node.kind.makes} if brought_by(node.kind.name) else {})


def _under_its_name(error: BaseException, node: Node) -> BaseException:
    """What a stage's process says of its fields, which it knows by its kind, as said of the stage's name."""
    if isinstance(error, process.StageFailed):
        error = error.moved(node.kind.name, node.name)
        error.stage = node.name
    return error


def _upload(node: Node, done: dict[str, Artifact], steps: int | None) -> dict[str, Any]:
    """What the upload of a stage needs to know of its recipe."""
    recipe = node.recipe
    return {
        "kind": "stage", "upload_models": recipe.tracking.upload_models, "experiment": experiment_name(recipe),
        "steps": {} if steps is None else {node.kind.name: steps}, "checkpoints": checkpoints_read(recipe, node.name, done),
        "model_params": record.params(recipe, ("model", node.name)),
    }  # fmt: skip


def _begin_next(recipe: Recipe, later: Sequence[str], done: dict[str, Artifact], fresh: bool) -> None:
    """Start the process of the next stage that is not known to be reused."""
    for name in later:
        node = recipe.node(name)
        if not fresh and all(source in done for source in node.inputs.values()):
            try:
                parts = keys.key_parts(recipe, name, {label: done[s].digest for label, s in node.inputs.items()})
            except UserError:  # such as a store that cannot be reached: said when it is the stage's turn
                return
            if artifacts.folder(runs_folder(), node.kind.name, keys.stage_key(parts)).exists():
                continue
        ahead.begin(node)
        return


def _ticker(
    node: Node, work: Path, trackers: tuple[Any, ...], show: Show | None, prepare: Callable[[], None]
) -> Callable[[], None]:
    """What is done several times a second while a stage runs: its metrics are sent, its alarms said, its progress shown.

    Args:
        prepare: done once, while the stage works.
    """
    stage, kind, tell = node.name, node.kind.name, None
    if node.recipe.notify is not None:
        from tasks import notices

        tell = notices.of_alarms(node.recipe.name, node.recipe.notify)
    teller = alarms.AlarmNotifier(stage, work, tell)
    prepared = False

    def tick() -> None:
        nonlocal prepared
        for tracker in trackers:
            tracker.tick()
        if not prepared:  # what would take a second at the end, while the stage works
            prepared = True
            prepare()
            plots.prepare(kind)
        ahead.check_memory()
        teller.tick()
        if show:
            show(stage, _progress(work))

    return tick


def _progress(work: Path) -> dict[str, Any]:
    kinds = {"done": (int, float), "total": (int, float), "rate": (int, float), "what": str, "unit": str}
    return read_object(work / PROGRESS, **kinds) or {}  # type: ignore[arg-type]


def _close_run(
    tracker: Any, mirrored: mirrors.StageMirrors, patience: TimeBudget, error: BaseException, log_text: str
) -> None:
    """Mark the MLflow run of a stage that ended without a result, with its log; kept in the outbox where MLflow is away."""
    from tasks.tracking import api as tracking

    mirrored.finish(_ending(error))
    patience = TimeBudget(min(patience.left or 0.0, 5.0))  # somebody waits for the message, or has pressed Ctrl+C
    tracker.finish(patience)
    if isinstance(error, process.StageFailed):
        error.run_id, error.last_lines = tracker.run_id or "", log_text.splitlines()[-process.LAST_LINES :]
    if tracker.run_id is None:
        return
    status, tags = _ending(error), {"whetstone.error": redact(error)}
    texts = {record.STAGE_LOG: redact(log_text)} if status == "FAILED" and log_text else {}
    try:
        patience.run(lambda: tracking.close(tracker.run_id, status, tags, texts))
    except TrackerError:
        outbox.add_run(tracker.run_id, {"kind": "close", "status": status, "tags": tags, "texts": texts})


def _ending(error: BaseException) -> str:
    """MLflow's word for how a stage ended that this error has ended."""
    return "FAILED" if isinstance(error, Exception) else "KILLED"


def _seconds_so_far(work: Path, value: float | None = None) -> float:
    """Time already spent on this stage by runs that did not finish."""
    path = work / "seconds.json"
    if value is not None and work.exists():
        write_atomic(path, json.dumps(value), durable=False)
    stored = read_json(path)
    return float(stored) if isinstance(stored, int | float) and 0 <= stored < 1e12 else 0.0


def job_of(node: Node, done: dict[str, Artifact]) -> dict[str, Any]:
    """What `job.json` of a stage says; `done` are the artifacts of the stages before it."""
    recipe, threads = node.recipe, node.recipe.threads
    if launched(node):
        from tasks.launchers import threads_of

        threads = threads_of(node)
    return {
        "stage": node.kind.name,
        "settings": {node.kind.name: node.settings.model_dump(), "model": recipe.model.model_dump()},
        "seed": node.seed,
        "threads": threads,
        "sandbox": recipe.model_dump(include={"sandbox"})["sandbox"],
        "plugins": [
            *(str(Path(name).expanduser().resolve()) if plugins.is_file(name) else name for name in recipe.plugins),
            *references.of(recipe.nodes()),
        ],
        "computes": keys.node_reads(recipe, node.name).computes,
        "inputs": {label: str(done[s].path) for label, s in node.inputs.items()},
        **node.kind.job(node),
    }


def checkpoints_read(recipe: Recipe, stage: str, done: dict[str, Artifact]) -> dict[str, str]:
    """Checkpoints that a stage reads: label → the artifact that holds it (`sft-KEY`), or `base:NAME` for the recipe's own base.

    Args:
        done: artifacts of the stages before it.
    """
    node = recipe.node(stage)
    own_base = f"base:{recipe.model.path}" if recipe.model.path else None
    read: dict[str, str | None] = {}
    evaluated = node.kind.job(node).get("checkpoints")
    for label, source in node.labels.items():
        if source == BASE:
            read[label] = own_base or _name(done.get(recipe.base_maker or ""))
        elif (evaluated is None or label in evaluated) and recipe.node(source).kind.makes == MODEL:
            read[label] = _name(done.get(source))
    if not read and node.reads_base and node.kind.makes == MODEL:
        read["base"] = own_base
    return {label: place for label, place in read.items() if place}


def _name(artifact: Artifact | None) -> str | None:
    return artifact.name if artifact else None


def _steps(work: Path, metrics: dict[str, float]) -> int | None:
    """Optimizer steps that the weights which a stage hands on have had; None for a stage that trains nothing."""
    if "steps" not in metrics:
        return None
    best = [e["step"] for e in lines_of(work / SPOOL) if e["kind"] == "event" and e.get("code") == HANDED_ON]
    return int(best[-1] if best else metrics["steps"])


def _about(node: Node, parts: dict[str, Any], inputs: dict[str, Artifact], run_name: str = "") -> dict[str, Any]:
    """What the stage's run in MLflow says of it: name, parameters, tags, inputs."""
    recipe = node.recipe
    run_name = run_name or recipe.name
    params = dict(flatten(keys.settings_of(recipe, node.name))) | {"seed": str(node.seed)}
    params |= {f"version.{k}": v for k, v in parts["versions"].items()}
    data = [a for label, a in inputs.items() if recipe.node(node.inputs[label]).kind.makes == DATA]
    tags = {"whetstone.recipe": recipe.name, "whetstone.seed": str(node.seed), **record.git()}
    tags |= {"whetstone.stage_kind": node.kind.name, **record.reward_tags(node)}
    tags |= {f"whetstone.input.{label}": a.name for label, a in inputs.items()}
    tags |= {f"whetstone.input_run.{label}": a.run_id for label, a in inputs.items() if a.run_id}
    models = [outbox.uploaded(a.path).models.get(a.stage) for a in inputs.values()]
    tags["whetstone.arm"] = names.arm(run_name)
    about: dict[str, Any] = {"name": f"{node.name}{names.DOT}{run_name}", "params": params, "tags": tags}
    about["datasets"] = [training_data(recipe, each) for each in data]
    return about | {"models": [m for m in models if m]}


def training_data(recipe: Recipe, data: Artifact) -> dict[str, Any]:
    """The curated data as a dataset of MLflow's."""
    rows = read_object(data.path / "data.json") or {}
    return {
        "name": recipe.name, "digest": data.digest[:36], "source": str(data.path), "context": "training",
        "profile": json.dumps(rows.get("splits", {})),
    }  # fmt: skip


def _report_folder(kind: str, work: Path) -> None:
    """Metrics, log and pictures go with the artifact, outside its digest."""
    report = work / "out" / REPORT
    report.mkdir(parents=True, exist_ok=True)
    for name in (SPOOL, VISIBLE, "system.jsonl", process.LOG):
        if (work / name).exists():
            shutil.copy2(work / name, report / name)
    try:
        plots.curves(work / SPOOL, report, kind)
    except Exception as error:
        log.warning("%s: no pictures were drawn: %s", kind, error)
