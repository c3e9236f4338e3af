"""Mirrors: what MLflow is told of a stage's run, shown in other trackers too (`tracking.mirror`).

A stage has an entry under `runs/.mirrors`: its feed (`feed`) and, for each tracker, the state of the process that sends it (`process`).
MLflow stays the record: nothing is read back from a mirror, and one that is slow, fails or is not installed costs a warning.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.base.files import REPORT, read_manifest, read_object, write_atomic
from pipelines.base.secrets import redact
from pipelines.recipe.stage_kind import SCORES, Node, kind_of_run
from pipelines.stage.report import SPOOL
from tasks.environment import home, runs_folder
from tasks.store import index
from tasks.tracking import benchmarks, links, outbox, record
from tasks.tracking.mirror.feed import Feed, Reader
from tasks.tracking.mirror.process import FINISH, JOB, state_file, state_of

if TYPE_CHECKING:
    from tasks.tracking.mirror.sender import Sender

log = logging.getLogger("whetstone.mirror")
EVERY_S = 0.5
RETRY_S = (5.0, 30.0, 120.0)
"""Seconds until a process that failed is started again: the more often it has failed, the later."""
AT_THE_END_S = 15.0
"""How long the end of a run waits for its mirrors."""
TRIES = 5
"""Starts that failed, after which only `whetstone sync` tries again."""
HANGS_S = 300.0
"""A process that has sent nothing for so many seconds, though there was something to send, has failed."""
QUIET_S = 10.0
"""The same for one that is still there when nobody waits any longer."""
KEPT_S = 30 * 86400.0
"""How long after the end of a stage what its mirrors lack is kept."""
_children: dict[tuple[Path, str], Sender] = {}
"""Entry and tracker → the process that looks after it; stages that had ended before share one for each tracker."""
LISTED = 5
"""Mirrors that a warning names at most."""
_warned: set[tuple[Path, str]] = set()
_lock = threading.Lock()


def folder() -> Path:
    """Where the entries are, one for each stage: `runs/.mirrors/sft-KEY`."""
    return runs_folder() / ".mirrors"


class StageMirrors:
    """The mirrors of a stage that runs. Nothing here raises, and nothing waits.

    Args:
        stage: its name; `work` its work folder, in which the spool is.
        entry: of this stage.
    """

    def __init__(self, stage: str, work: Path, entry: Path, names: list[str]) -> None:
        self.stage, self.work, self.entry, self.names = stage, work, entry, names
        self.feed: Feed | None = None
        self._next = 0.0

    def tick(self) -> None:
        """Feed what is new, and keep a process going for each mirror."""
        if not self.names or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        with _harmless(self.stage):
            self.feed = self.feed or Feed(self.entry)
            self.feed.take(self.work)
            for name in self.names:
                _keep_going(name, [self.entry])

    def finish(self, status: str, artifact: Path | None = None) -> None:
        """Say that the stage has ended; its mirrors go on by themselves until they have everything."""
        if not self.names:
            return
        self._next = 0.0
        self.tick()
        with _harmless(self.stage):
            _finish(self.entry, status, artifact)


@contextlib.contextmanager
def _harmless(stage: str) -> Iterator[None]:
    """A mirror is no reason for a run to fail: what goes wrong is said once."""
    try:
        yield
    except Exception as error:
        if (Path(stage), "") not in _warned:
            _warned.add((Path(stage), ""))
            log.warning("%s: its mirrors are not fed: %s", stage, redact(error))


def begin(node: Node, key: str, work: Path, parent: str | None, about: dict[str, Any]) -> StageMirrors:
    """The mirrors that the recipe wants of a stage; a stage that goes on keeps the run and the group with which it began.

    Args:
        key: of the stage; `about` what MLflow's run of it is opened with.
        parent: the pipeline's run.
    """
    recipe, names = node.recipe, list(node.recipe.tracking.mirror)
    entry = folder() / f"{node.kind.name}-{key}"
    mirrors = StageMirrors(node.name, work, entry, names)
    with _harmless(node.name):
        for name in [name for of, name in list(_children) if of == entry]:  # of the run that failed here before
            _keep_going(name, [other for other in _stop(entry, name) if other != entry])
        if not (work / SPOOL).exists():  # of an earlier run of the same key
            shutil.rmtree(entry, ignore_errors=True)
        if not names:
            return mirrors
        experiment = recipe.tracking.experiment or recipe.name
        run: dict[str, Any] = next((r for r in reversed(index.runs()) if r["run_id"] == parent), {}) if parent else {}
        earlier = read_object(entry / JOB, id=str, group=str, began=(int, float)) or {}
        kept = {name: earlier[name] for name in ("id", "group", "began") if name in earlier}
        job = {
            "id": uuid.uuid4().hex[:8], "began": time.time(), "home": str(home()), "experiment": experiment,
            "group": f"{run.get('name') or recipe.name}-{parent[:8]}" if parent else recipe.name,
            "kind": node.kind.name, "name": about["name"], "names": names,
            "params": {name: redact(text) for name, text in about["params"].items()},
            "tags": {name: redact(text) for name, text in about["tags"].items()},
            "experiment_id": run.get("experiment_id"),
            "labels": node.kind.shown(node) if node.kind.makes == SCORES else {},
        } | kept  # fmt: skip
        entry.mkdir(parents=True, exist_ok=True)
        (entry / FINISH).unlink(missing_ok=True)
        for name in names:
            _reset(entry, name)
        write_atomic(entry / JOB, json.dumps(job), durable=False)
    return mirrors


def _reset(entry: Path, name: str) -> None:
    state = state_of(entry, name)
    if state["done"] or state["failures"]:
        write_atomic(state_file(entry, name), json.dumps(state | {"done": False, "failures": 0}), durable=False)


def _finish(entry: Path, status: str, artifact: Path | None) -> None:
    job = read_object(entry / JOB) or {}
    scores: dict[str, float] = {}
    about = {"whetstone.status": status}
    manifest = read_manifest(artifact) if artifact else None
    if artifact is not None and manifest is not None:
        about["whetstone.key"] = artifact.name
        scores = {f"final/{name}": float(value) for name, value in (manifest.get("numbers") or {}).items()}
        if kind_of_run(job["kind"]).makes == SCORES:
            body = benchmarks.renamed(benchmarks.results(artifact), job["labels"])
            scores = record.scores({**body, "stages": {}})
        run_id = manifest.get("run_id")
        if run_id:
            about["mlflow.run_id"] = run_id
            if job.get("experiment_id"):
                about["mlflow.run"] = links.run(job["experiment_id"], run_id)
    write_atomic(entry / FINISH, json.dumps({"status": status, "scores": scores, "about": about}), durable=False)


def _keep_going(name: str, entries: Sequence[Path]) -> bool:
    """Start a process for the mirrors in a tracker that have none and are not done; False where none of them is tried now."""
    with _lock:
        busy, due = False, []
        for entry in entries:
            child = _children.get((entry, name))
            if child is not None and child.poll() is None:
                if child.quiet() < HANGS_S:
                    busy = True
                    continue
                child.end(f"it has sent nothing for {HANGS_S:.0f} seconds")
            if not state_of(entry, name)["done"] and (child is None or _tried_again(child, entry)):
                due.append(entry)
        if due:
            from tasks.tracking.mirror.sender import Sender  # most recipes have no mirrors

            child = Sender(name, due)
            _children.update(((entry, name), child) for entry in due)
        return busy or bool(due)


def _tried_again(child: Sender, entry: Path) -> bool:
    """Whether a mirror whose process has ended gets another one now."""
    name = child.name
    child.count_death()
    if not child.has_failed(entry):
        return True  # its process ended before its turn, or left it to another pipeline's
    state = state_of(entry, name)
    _warn(entry, name, state["problem"])
    waits = RETRY_S[min(state["failures"], len(RETRY_S)) - 1]
    return bool(state["failures"] < TRIES and time.time() - _ended(entry, name) >= waits)


def _ended(entry: Path, name: str) -> float:
    with contextlib.suppress(OSError):
        return max(f.stat().st_mtime for f in (entry / f"{name}.log", state_file(entry, name)) if f.exists())
    return 0.0


def _warn(entry: Path, name: str, problem: str) -> None:
    """One warning for a mirror of a stage, whatever else goes wrong with it."""
    if (entry, name) not in _warned:
        _warned.add((entry, name))
        log.warning(
            "mirror %s of %s: %s (training continues; log: %s)", name, entry.name, problem, entry / f"{name}.log"
        )


def take_up(*, again: bool = False) -> None:
    """Go on with the mirrors of stages that ended while their processes did not: a process for each tracker. Returns at once.

    Args:
        again: also those that have failed too often.
    """
    due: dict[str, list[Path]] = {}
    for entry in sorted(folder().glob("*/")):
        with _harmless(entry.name), outbox.stage_lock(runs_folder() / ".locks" / entry.name) as free:
            if not free or not _has_ended(entry):
                continue  # whoever runs the stage, or will go on with it, feeds its mirrors
            for name in _unsent(entry):
                if state_of(entry, name)["failures"] >= TRIES and not again:
                    continue
                if again:
                    _reset(entry, name)
                due.setdefault(name, []).append(entry)
            _forget_sent(entry)
    for name, entries in due.items():
        with _harmless(name):
            _keep_going(name, [entry for entry in entries if (entry / JOB).exists()])


def _has_ended(entry: Path) -> bool:
    """Whether a stage on which nobody works has ended; where that was not written down, it is now."""
    if (entry / FINISH).exists():
        return True
    artifact = runs_folder() / entry.name
    if (artifact / REPORT / SPOOL).exists():
        Feed(entry).take(artifact / REPORT)
        _finish(entry, "FINISHED", artifact)
    elif not _may_go_on(entry):
        _finish(entry, "KILLED", None)
    return (entry / FINISH).exists()


def _may_go_on(entry: Path) -> bool:
    return (runs_folder() / ".work" / entry.name).exists()


def _unsent(entry: Path) -> list[str]:
    """The trackers that have not got everything of a stage."""
    names = (read_object(entry / JOB, names=list) or {}).get("names") or []
    return [name for name in names if not state_of(entry, name)["done"]]


def _forget_sent(entry: Path) -> None:
    """Remove the entry of a stage that ended and whose mirrors have everything; one that may go on is kept while its work is there.

    What has failed and not arrived within a month is given up, with a warning.
    """
    ended = read_object(entry / FINISH, status=str) or {}
    unsent, over = _unsent(entry), ended.get("status") == "FINISHED" or not _may_go_on(entry)
    tried = bool(unsent) and all(state_of(entry, name)["failures"] for name in unsent)
    given_up = tried and time.time() - (entry / FINISH).stat().st_mtime > KEPT_S
    if given_up:
        missing = "; ".join(_lacks(entry, name) for name in unsent)
        log.warning("given up after %.0f days: %s", KEPT_S / 86400, missing)
    if (over and not unsent) or given_up:
        shutil.rmtree(entry, ignore_errors=True)


def flush(seconds: float) -> list[str]:
    """Wait for the mirrors of stages that have ended, those that this process looks after.

    Args:
        seconds: for all together. What is left then is sent with the next run, or with `whetstone sync`.

    Returns:
        what each mirror lacks that has not got everything.
    """
    until = time.monotonic() + seconds
    entries = {entry for entry, _ in list(_children)}
    missing: list[str] = []
    with _harmless("mirrors"):
        while _busy(entries) and time.monotonic() < until:
            time.sleep(0.1)
        for entry in sorted(entry for entry in entries if (entry / FINISH).exists()):
            for name in _unsent(entry):
                child = _children.get((entry, name))
                if child is not None and child.poll() is None and child.quiet() > QUIET_S:
                    child.end(f"it sent nothing in the last {child.quiet():.0f} seconds")
            for name in _unsent(entry):
                missing.append(_lacks(entry, name))
            for name in (read_object(entry / JOB, names=list) or {}).get("names") or []:
                _stop(entry, name)
            _forget_sent(entry)
    return missing


def close(seconds: float) -> None:
    """`flush` at the end of a run, with one line of what was not mirrored."""
    missing = flush(seconds)
    if missing:
        unlisted = f" and {len(missing) - LISTED} more" if len(missing) > LISTED else ""
        told = "; ".join(missing[:LISTED])
        log.warning("not mirrored: %s%s; the next run or `whetstone sync` sends the rest", told, unlisted)


def _busy(entries: Collection[Path]) -> bool:
    """Whether a mirror of an ended stage still sends, or will be tried again at once."""
    waiting: dict[str, list[Path]] = {}
    for entry in sorted(entries):
        if (entry / FINISH).exists():
            for name in _unsent(entry):
                waiting.setdefault(name, []).append(entry)
    busy = [_keep_going(name, each) for name, each in waiting.items()]  # all of them, not up to the first
    return any(busy)


def _lacks(entry: Path, name: str) -> str:
    state, points = state_of(entry, name), sum(1 for _ in Reader(entry).new())
    why = f" ({state['problem']})" if state["problem"] else ""
    sent = min(state["sent"], points)
    return f"{name} has {sent} of {points} points of {entry.name}{why}"


def _stop(entry: Path, name: str) -> list[Path]:
    """End the process of a mirror, for which nobody waits any more; returns the stages that it looked after."""
    with _lock:
        child = _children.pop((entry, name), None)
        if child is None:
            return []
        for other in child.entries:
            if _children.get((other, name)) is child:
                del _children[other, name]
        if child.poll() is None:
            child.end()
        return child.entries
