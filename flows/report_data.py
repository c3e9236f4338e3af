"""What the page of `whetstone report` shows: the stages of a run, answers of two checkpoints, and problems met at several steps."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.progress import Status
from pipelines.base.errors import UserError
from pipelines.recipe.stage_kind import SCORES, Kind, kind_of_run
from tasks import brought
from tasks.tracking import benchmarks, lookup, rollouts

log = logging.getLogger("whetstone.report")
QUESTIONS, FOLLOWED = 1000, 6
"""Questions of a benchmark, and problems followed over steps."""


@dataclass
class Flips:
    """One benchmark, answered by two checkpoints."""

    task: str
    before: str
    after: str
    pairs: list[tuple[benchmarks.Answer, benchmarks.Answer]] = field(default_factory=list)
    """Questions that changed sides first: gained, then lost, then the rest."""
    counts: dict[str, int] = field(default_factory=dict)


def side(before: benchmarks.Answer, after: benchmarks.Answer) -> str:
    """What became of a question: correct means that at least half of the answers are."""
    was, now = (bool(benchmarks.shown(a).marks.get("correct")) for a in (before, after))
    return {(False, True): "gained", (True, False): "lost", (True, True): "both", (False, False): "neither"}[was, now]


def flips(artifact: Path, before: str, after: str, limit: int = QUESTIONS) -> list[Flips]:
    """The answers of two checkpoints, by benchmark, flips first."""
    first = {(a.task, a.uid): a for a in benchmarks.answers(artifact, before)}
    by_task: dict[str, Flips] = {}
    for answer in benchmarks.answers(artifact, after):
        other = first.get((answer.task, answer.uid))
        if other is not None:
            by_task.setdefault(answer.task, Flips(answer.task, before, after)).pairs.append((other, answer))
    order = ("gained", "lost", "both", "neither")
    for task in by_task.values():
        task.counts = {name: sum(side(*pair) == name for pair in task.pairs) for name in order}
        task.pairs = sorted(task.pairs, key=lambda pair: order.index(side(*pair)))[:limit]
    return list(by_task.values())


def followed(rows: list[dict[str, Any]], most: int = FOLLOWED) -> dict[str, list[dict[str, Any]]]:
    """Problems that were met at several steps, those met most often first: uid → their rollouts at first, middle and last step."""
    steps: dict[str, set[int]] = {}
    for row in rows:
        steps.setdefault(row["uid"], set()).add(row["step"])
    often = sorted((uid for uid in steps if len(steps[uid]) > 1), key=lambda uid: (-len(steps[uid]), uid))[:most]
    chosen = {uid: set(rollouts.spread(sorted(steps[uid]), 3)) for uid in often}
    return {uid: [r for r in rows if r["uid"] == uid and r["step"] in chosen[uid]] for uid in often}


def run_of(prefix: str) -> dict[str, Any]:
    """A run with the folders of those stages that the page shows, fetched from MLflow where they were made elsewhere.

    Raises:
        UserError: there is no such run, or it has no stages.
    """
    try:
        body = lookup.find_run(prefix, ask_mlflow=False)
    except lookup.NoSuchRun:
        remote = brought.remote_run(prefix)
        if remote is None:
            raise
        body = remote
    summary = body.get("summary") or {}
    stages = summary.get("stages") or {}
    if not stages and not summary.get("failed"):
        raise UserError(
            f"run {body['run_id']} has no stages in this store; `whetstone show {prefix}` says what it has."
        )
    elsewhere = [
        name for name, about in stages.items() if about.get("artifact") and not Path(about["artifact"]).is_dir()
    ]
    with Status() as status:
        scores = [name for name in elsewhere if kind_of(stages[name]).makes == SCORES]
        brought.stages(body, scores, status)
        brought.records(body, elsewhere, status)
    for name in elsewhere:
        about = stages[name]
        here = brought.place(about["kind"], str(about.get("key")))
        if here is None:
            log.warning("the report of %s is neither here nor in MLflow; the page leaves it out", name)
        else:
            about["artifact"] = str(here)
    return body


def kind_of(about: dict[str, Any]) -> Kind:
    """The kind of a stage of a run's summary."""
    return kind_of_run(about["kind"], about.get("makes", ""))


def last_flips(stages: dict[str, Any]) -> list[Flips]:
    """The answers of the last model of the last evaluation against those of the one that it was made from."""
    for about in reversed(list(stages.values())):
        if kind_of(about).makes == SCORES:
            artifact, names = Path(about["artifact"]), about.get("checkpoints") or {}
            results = benchmarks.results(artifact)
            last = next(reversed(results["evaluation"]), None)
            steps = [step.partition(" → ") for by_step in results["differences"].values() for step in by_step]
            before = next((first for first, _, after in steps if after == last), None)
            if last is None or before is None:
                return []
            tasks = flips(artifact, before, last)
            return [replace(f, before=names.get(f.before, f.before), after=names.get(f.after, f.after)) for f in tasks]
    return []
