"""What a whole pipeline run shares: its selection of stages, its parent run, its summary."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Container
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from pipelines.base.errors import RecipeError, UserError, did_you_mean
from pipelines.base.files import digest, read_object, write_atomic
from pipelines.base.secrets import redact
from pipelines.recipe.read import SECTIONS, Recipe, read_recipe
from pipelines.recipe.stage_kind import DATA, MODEL, SCORES, kind_named, kind_of_run
from tasks.environment import Unreachable, home, tracking_uri
from tasks.planning import Planned
from tasks.process import StageFailed
from tasks.stages import StageResult, checkpoints_read, experiment_name, fetch_inputs, inputs_of, plan, training_data
from tasks.store import index
from tasks.store.artifacts import Artifact
from tasks.tracking import benchmarks, heartbeat, leases, outbox, record
from tasks.tracking.time_budget import TimeBudget, TrackerError

log = logging.getLogger("whetstone.pipeline")


FAILURE_S = 5.0
"""How long MLflow is waited for at the end of a run that failed: somebody waits for the message."""
ANSWERS_S = 15.0
"""How long the end of a run waits for its answers to be shown in MLflow."""


@dataclass(frozen=True)
class Selection:
    """Which stages a run may touch."""

    start: str | None = None
    """This stage and all that are made from it; in a chain of plain sections, all that come after it."""
    until: str | None = None
    """This stage and all that it is made from; in a chain of plain sections, all that come before it."""
    only: tuple[str, ...] = ()

    def of(self, recipe: Recipe) -> list[str]:
        """The stages in order.

        Raises:
            RecipeError: a stage that the recipe does not have, or an empty selection.
        """
        stages = recipe.stage_names()
        for option, names in (("--from", [self.start]), ("--until", [self.until]), ("--only", list(self.only))):
            for name in names:
                if name is not None and name not in stages:
                    known = stages if name in SECTIONS or recipe.stages else SECTIONS
                    raise RecipeError(f"{option} {name}", "this recipe has no such stage", did_you_mean(name, known))
        chosen = [s for s in stages if self._between(recipe, s) and (not self.only or s in self.only)]
        if not chosen:
            raise RecipeError("--from, --until and --only leave no stage to run.")
        return chosen

    def _between(self, recipe: Recipe, stage: str) -> bool:
        """Whether a stage comes after `start` and before `until`, themselves included."""
        if not recipe.stages:
            order = recipe.stage_names()
            first, last = self.start or order[0], self.until or order[-1]
            return order.index(first) <= order.index(stage) <= order.index(last)
        after = self.start in (None, stage) or self.start in [n.name for n in recipe.node(stage).ancestors()]
        before = self.until in (None, stage) or stage in [n.name for n in recipe.node(str(self.until)).ancestors()]
        return after and before


@dataclass(frozen=True)
class Prepared:
    """A recipe, the stages chosen of it, and what a run of them would do."""

    recipe: Recipe
    chosen: list[str]
    fresh: bool = False
    of_run: str | None = None
    """Id of the run in MLflow that is repeated."""

    @classmethod
    def of(
        cls, path: str | Path, overrides: list[str] | None, selection: Selection, *, fresh: bool, fetch: bool = True,
        of_run: str | None = None,
    ) -> Prepared:  # fmt: skip
        """Read a recipe and choose its stages; `fetch`: get from MLflow what a part of the recipe reads.

        Raises:
            RecipeError: names the field, or the option, and the fix.
        """
        return cls.of_recipe(read_recipe(path, overrides), selection, fresh=fresh, fetch=fetch, of_run=of_run)

    @classmethod
    def of_recipe(
        cls, recipe: Recipe, selection: Selection, *, fresh: bool, fetch: bool, of_run: str | None = None
    ) -> Prepared:
        """As `of`, of a recipe that has been read."""
        chosen = selection.of(recipe)
        if fetch and chosen != recipe.stage_names():
            fetch_inputs(recipe, chosen)
        return cls(recipe, chosen, fresh, of_run)

    @cached_property
    def planned(self) -> list[Planned]:
        """Of the chosen stages."""
        return [p for p in plan(self.recipe, fresh=self.fresh, only=self.chosen) if p.stage in self.chosen]

    @property
    def will_run(self) -> list[str]:
        """The chosen stages that are not reused."""
        return [p.stage for p in self.planned if p.action == "run"]


handed_on: ContextVar[Prepared | None] = ContextVar("handed_on", default=None)
"""What the command line has prepared for the flow that it starts in its own process."""


def needed_before(
    recipe: Recipe, chosen: list[str], planned: list[Planned], of_run: str | None = None
) -> dict[str, Artifact]:
    """Artifacts of stages outside the selection that the selection reads.

    Args:
        of_run: id of the run in MLflow that is repeated.

    Raises:
        RecipeError: one of them has not been made yet.
    """
    by_stage = {p.stage: p for p in planned}
    done: dict[str, Artifact] = {}
    for stage in chosen:
        for source in inputs_of(recipe, stage).values():
            if source in chosen or source in done:
                continue
            artifact = by_stage[source].artifact
            if artifact is None:
                from tasks import repeated

                raise repeated.missing(recipe, stage, source, planned, of_run)
            done[source] = artifact
    return done


@dataclass
class Pipeline:
    """One run of a recipe, from the flow's point of view."""

    recipe: Recipe
    parent: str | None
    state: Path
    claim: leases.Claim | None = None
    alive: heartbeat.Heartbeat | None = None
    recorded: bool = False
    """MLflow already holds a finished run with the same stages."""
    experiment_id: str | None = None
    """Of MLflow, for links; None where MLflow was not asked."""
    name: str = ""
    """What was set for it, as MLflow shows it."""
    origin: dict[str, str] = field(default_factory=dict)
    """What started it, as tags of its run in MLflow."""
    began: float = field(default_factory=time.monotonic)
    results: dict[str, StageResult] = field(default_factory=dict)
    before: dict[str, Artifact] = field(default_factory=dict)
    """What stages outside the selection have made, and the selection reads."""
    gate: dict[str, Any] | None = None
    """What the recipe's gate has said."""

    @classmethod
    def open(
        cls,
        recipe: Recipe,
        patience: TimeBudget | None = None,
        *,
        source: str | None = None,
        overrides: list[str] | None = None,
        origin: dict[str, str] | None = None,
    ) -> Pipeline:
        """A parent run in MLflow; the one of a killed or stopped run of the same recipe is taken up again.

        Two pipelines of one recipe that run at once have a parent run each.

        Args:
            source: the recipe's file, and `overrides` what was changed in it, as somebody wrote them.
            origin: what started it, as tags; `whetstone run` unless given.

        Raises:
            Unreachable: MLflow does not answer, or will not hold the run.
        """
        from tasks.tracking import api as tracking

        state = cls.state_of(recipe)
        claim = leases.adopt(state.stem)
        tags = {"whetstone.recipe": recipe.name, "whetstone.seed": str(recipe.seed)}
        tags["whetstone.owner"] = f"{os.getpid()}@{socket.gethostname()}"
        origin = origin or {record.TRIGGER: "hand"}
        tags |= record.source_tags(source, overrides) | origin
        tags |= {"whetstone.presets": ", ".join(recipe.presets)} if recipe.presets else {}
        name = record.run_name(recipe, overrides)
        patience = patience or TimeBudget(max(recipe.tracking.timeout_s, 15.0))
        experiment = experiment_name(recipe)
        tracking.open_embedded()  # making the store is work: no time of a server that does not answer
        try:
            if claim is not None and not patience.run(lambda run=claim.run: tracking.reopen(run, tags)):  # type: ignore[misc]
                claim.release()
                claim = None
            if claim is None:
                text = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)
                params = record.params(recipe)
                parent = patience.run(lambda: tracking.start_pipeline(name, experiment, tags, params, text))
                claim = leases.take(parent, state.stem)
            experiment_id = patience.run(lambda run=claim.run: tracking.experiment_of(run))  # type: ignore[misc]
        except TrackerError as error:
            if claim is not None:
                claim.handle.close()
            raise Unreachable(f"MLflow at {redact(tracking_uri())} did not open a run: {error}") from None
        index.start(claim.run, name, experiment, tags, experiment_id)
        alive = heartbeat.Heartbeat(claim.run)
        return cls(recipe, claim.run, state, claim, alive, experiment_id=experiment_id, name=name, origin=origin)

    @staticmethod
    def state_of(recipe: Recipe) -> Path:
        """The file that remembers the finished parent run of this very recipe in this very store."""
        fields = recipe.model_dump(mode="json", exclude={"tracking": {"mirror"}, "gate": True, "notify": True})
        mark = digest([fields, tracking_uri()])[:12]
        return home() / "pipelines" / f"{recipe.name}-{mark}.json"

    @classmethod
    def unchanged(cls, recipe: Recipe, source: str | None = None, overrides: list[str] | None = None) -> Pipeline:
        """A run in which every stage is reused: the finished run of the same recipe, if there was one, is its record.

        Nothing new would be in MLflow, so it is not asked (importing it takes seconds).
        """
        state = cls.state_of(recipe)
        kept = read_object(state, parent=str, finished=bool, experiment_id=str) or {}
        if kept.get("finished"):
            return cls(recipe, kept.get("parent"), state, recorded=True, experiment_id=kept.get("experiment_id"))
        try:
            patience = TimeBudget(min(recipe.tracking.timeout_s, 15.0))
            return cls.open(recipe, patience, source=source, overrides=overrides)
        except Unreachable as error:
            log.warning("nothing had to be run, and nothing was recorded: %s", error)
            return cls(recipe, None, state, recorded=True)

    def summary(self) -> dict[str, Any]:
        """What `--summary` writes."""
        evaluation: dict[str, Any] = {}
        differences: dict[str, Any] = {}
        for stage in self._that_make(SCORES, self.results):
            names = self.names_in(stage)
            body = benchmarks.renamed(benchmarks.results(self.results[stage].artifact.path), names)
            for checkpoint, by_task in body["evaluation"].items():
                evaluation.setdefault(checkpoint, {}).update(by_task)
            for task, steps in body["differences"].items():
                differences.setdefault(task, {}).update(steps)
        return {
            "recipe": self.recipe.name,
            "seed": self.recipe.seed,
            "parent_run_id": self.parent,
            "experiment_id": self.experiment_id,
            "seconds": round(time.monotonic() - self.began, 3),
            "stages": {name: self._told_of(name, result) for name, result in self.results.items()},
            "evaluation": evaluation,
            "differences": differences,
        } | ({"gate": self.gate} if self.gate else {})

    @property
    def evaluations(self) -> dict[str, Artifact]:
        """Stage → its artifact, of the evaluations that this run has made or reused."""
        return {name: self.results[name].artifact for name in self._that_make(SCORES, self.results)}

    def _told_of(self, name: str, result: StageResult) -> dict[str, Any]:
        """A stage's entry; of an evaluation, also which stage is meant by which label of its artifact."""
        node = self.recipe.node(name)
        names = {"checkpoints": node.kind.shown(node)} if node.kind.makes == SCORES and self.recipe.stages else {}
        rewards = [reward.text for reward in node.kind.provenance(node)]
        return result.summary() | names | {"inputs": node.inputs} | ({"rewards": rewards} if rewards else {})

    def _that_make(self, what: str, among: Container[str]) -> list[str]:
        """Stages of `among` that make something, in order."""
        return [
            name for name, stage in self.recipe.graph.items() if name in among and kind_named(stage.kind).makes == what
        ]

    def names_in(self, stage: str) -> dict[str, str]:
        """Label that an evaluation's artifact has for a checkpoint → its name in this recipe."""
        node = self.recipe.node(stage)
        return node.kind.shown(node)

    def close(
        self,
        status: str = "FINISHED",
        error: BaseException | None = None,
        say: Callable[[str], None] = lambda what: None,
    ) -> dict[str, Any]:
        """End the parent run: scores, links to stages and checkpoints, the last checkpoint registered. Returns the summary.

        What is to be told waits in the outbox until MLflow has taken it. A run that was stopped is only marked, because somebody
        waits for the prompt.

        Args:
            error: what has ended a run that failed.
            say: told what is sent and waited for, and an empty text at the end.
        """
        from tasks.tracking import mirrors  # a plan ends no run

        summary = self.summary() | ({"failed": _failed(error)} if error is not None and status == "FAILED" else {})
        if not self.recorded:
            self._record(status, summary, say)
        say("waiting for mirrors" if self.recipe.tracking.mirror else "")
        mirrors.close(mirrors.AT_THE_END_S if status == "FINISHED" else 1.0)
        return summary

    def _record(self, status: str, summary: dict[str, Any], say: Callable[[str], None]) -> None:
        """Tell MLflow and the index that the parent run has ended."""
        if self.alive:
            self.alive.stop()
        metrics = record.scores(summary)
        told = arrived = True
        if self.parent and status == "KILLED":
            told = self._mark_killed(summary)
        elif self.parent:
            say("sending scores and models to MLflow")
            entry = outbox.add_run(self.parent, self._told(status, summary, metrics))
            wait = self.recipe.tracking.timeout_s
            arrived = outbox.flush(entry, TimeBudget(wait if status == "FINISHED" else min(wait, FAILURE_S)))
        if self.parent:
            index.end(self.parent, status, summary, metrics)
        if status == "FINISHED":
            state = {"parent": self.parent, "finished": True, "experiment_id": self.experiment_id}
            write_atomic(self.state, json.dumps(state))
        if self.claim and status == "KILLED":
            self.claim.leave(status, told=told)
        elif self.claim:
            self.claim.release()
        if self.parent and status != "KILLED":
            say("sending answers and rollouts to MLflow")
            self._show_answers(TimeBudget(min(ANSWERS_S, self.recipe.tracking.timeout_s) if arrived else 0.0))

    def _show_answers(self, patience: TimeBudget) -> None:
        """Send answers and rollouts of new stages, last of all and for some seconds; the next start or `whetstone sync` goes on."""
        settings = self.recipe.tracking
        done = self.before | {name: result.artifact for name, result in self.results.items()}
        rewarded = [name for name, stage in self.recipe.graph.items() if kind_named(stage.kind).rewards]
        limits = dict.fromkeys(self._that_make(SCORES, done), settings.answers)
        for stage, limit in (limits | dict.fromkeys(rewarded, settings.rollouts)).items():
            if stage not in self.results or self.results[stage].status != "ran" or not limit:
                continue
            body = {
                "limit": limit,
                "time": int(time.time() * 1000),
                "experiment": experiment_name(self.recipe),
                "checkpoints": checkpoints_read(self.recipe, stage, done),
            }
            entry = outbox.add_answers(done[stage].name, body)
            if not patience.over:
                outbox.flush(entry, patience, away=logging.INFO)

    def _mark_killed(self, summary: dict[str, Any]) -> bool:
        from tasks.tracking import api as tracking

        body = {"summary": summary, "metrics": {}, "time": int(time.time() * 1000)}  # the run that goes on has metrics
        try:
            TimeBudget(5.0).run(lambda: tracking.end_pipeline(self.parent or "", "KILLED", body))
        except TrackerError as error:
            log.warning(
                "MLflow was not told that the run was stopped (%s); the next start or `whetstone sync` does", error
            )
            return False
        return True

    def _told(self, status: str, summary: dict[str, Any], metrics: dict[str, float]) -> dict[str, Any]:
        """What MLflow is told at the end, as an entry of the outbox."""
        done = self.before | {name: result.artifact for name, result in self.results.items()}
        body: dict[str, Any] = {"kind": "pipeline", "status": status, "summary": summary, "metrics": metrics}
        body["origin"] = self.origin
        body |= {"time": int(time.time() * 1000), "experiment": experiment_name(self.recipe)}
        body["datasets"] = [training_data(self.recipe, done[name]) for name in self._that_make(DATA, done)]
        trained = {name: done[name].name for name in self._that_make(MODEL, done)}
        body["checkpoints"] = trained
        evaluations = self._that_make(SCORES, self.results)
        body["evaluated"] = {done[name].name: self.names_in(name) for name in evaluations}
        for stage in evaluations:
            body["datasets"] += benchmarks.datasets(done[stage].path)
            read = checkpoints_read(self.recipe, stage, done)
            names = self.names_in(stage)
            body["checkpoints"] = {names.get(label, label): place for label, place in read.items()} | body[
                "checkpoints"
            ]
        body["checkpoints"] = {n: p for n, p in body["checkpoints"].items() if n not in trained} | trained
        if status == "FINISHED" and trained and any(self.results[name].status == "ran" for name in evaluations):
            name = self.recipe.tracking.register_model or self.recipe.name
            tags = {"whetstone.recipe": self.recipe.name, "whetstone.seed": str(self.recipe.seed)}
            body["register"] = {"name": name, "tags": tags | {"whetstone.parent_run": self.parent or ""}}
        return body


def _failed(error: BaseException) -> dict[str, Any]:
    """What a summary says of the error that has ended a run: its text, and where it came from a stage its name, run and last lines."""
    told: dict[str, Any] = {"error": redact(UserError.__str__(error) if isinstance(error, StageFailed) else error)}
    if isinstance(error, StageFailed):
        told |= {"stage": error.stage, "run_id": error.run_id, "log": [redact(line) for line in error.last_lines]}
    return told


def model_folder(results: dict[str, StageResult]) -> Path | None:
    """Where the newest trained checkpoint of the run lies."""
    models = [
        r.artifact.path / "model"
        for r in results.values()
        if kind_of_run(r.artifact.stage, r.artifact.makes).makes == MODEL
    ]
    return models[-1] if models else None
