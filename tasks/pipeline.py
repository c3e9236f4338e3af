"""What a whole pipeline run shares: its selection of stages, its parent run, its summary."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipelines.errors import RecipeError, did_you_mean
from pipelines.recipe.read import STAGES, Recipe
from pipelines.recipe.secrets import redact
from pipelines.stage.files import digest, read_object, write_atomic
from tasks import claims, heartbeat, index, outbox
from tasks.artifacts import Artifact
from tasks.environment import Unreachable, home, tracking_uri
from tasks.patience import Patience, TrackerError
from tasks.stages import Planned, StageResult, experiment_name, inputs_of, logged_model

log = logging.getLogger("whetstone.pipeline")


@dataclass(frozen=True)
class Selection:
    """Which stages a run may touch."""

    start: str | None = None
    until: str | None = None
    only: tuple[str, ...] = ()

    def of(self, recipe: Recipe) -> list[str]:
        """The stages in order.

        Raises:
            RecipeError: a stage that the recipe does not have, or an empty selection.
        """
        stages = recipe.stages()
        for option, names in (("--from", [self.start]), ("--until", [self.until]), ("--only", list(self.only))):
            for name in names:
                if name is not None and name not in stages:
                    known = stages if name in STAGES else STAGES
                    raise RecipeError(f"{option} {name}: this recipe has no such stage. {did_you_mean(name, known)}")
        first = stages.index(self.start) if self.start else 0
        last = stages.index(self.until) if self.until else len(stages) - 1
        chosen = [s for i, s in enumerate(stages) if first <= i <= last and (not self.only or s in self.only)]
        if not chosen:
            raise RecipeError("--from, --until and --only leave no stage to run.")
        return chosen


def needed_before(recipe: Recipe, chosen: list[str], planned: list[Planned]) -> dict[str, Artifact]:
    """Artifacts of stages outside the selection that the selection reads.

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
                raise RecipeError(
                    f"{stage} needs {source}, which has not been made for this recipe ({by_stage[source].why}). "
                    f"Include it: --from {source}."
                )
            done[source] = artifact
    return done


@dataclass
class Pipeline:
    """One run of a recipe, from the flow's point of view."""

    recipe: Recipe
    parent: str | None
    state: Path
    claim: claims.Claim | None = None
    alive: heartbeat.Heartbeat | None = None
    recorded: bool = False
    """MLflow already holds a finished run with the same stages."""
    began: float = field(default_factory=time.monotonic)
    results: dict[str, StageResult] = field(default_factory=dict)

    @classmethod
    def open(cls, recipe: Recipe, patience: Patience | None = None) -> Pipeline:
        """A parent run in MLflow; the one of a killed or stopped run of the same recipe is taken up again.

        Two pipelines of one recipe that run at once have a parent run each.

        Raises:
            Unreachable: MLflow does not answer, or will not hold the run.
        """
        from tasks import tracking

        state = cls.state_of(recipe)
        claim = claims.adopt(state.stem)
        tags = {"whetstone.recipe": recipe.name, "whetstone.seed": str(recipe.seed)}
        tags["whetstone.owner"] = f"{os.getpid()}@{socket.gethostname()}"
        patience = patience or Patience(max(recipe.tracking.timeout_s, 15.0))
        experiment = experiment_name(recipe)
        try:
            if claim is not None and not patience.run(lambda run=claim.run: tracking.reopen(run, tags)):  # type: ignore[misc]
                claim.release()
                claim = None
            if claim is None:
                text = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)
                parent = patience.run(lambda: tracking.start_pipeline(recipe.name, experiment, tags, text))
                claim = claims.take(parent, state.stem)
        except TrackerError as error:
            if claim is not None:
                claim.handle.close()
            raise Unreachable(f"MLflow at {redact(tracking_uri())} did not open a run: {error}") from None
        index.start(claim.run, recipe.name, experiment, tags)
        return cls(recipe, claim.run, state, claim, heartbeat.Heartbeat(claim.run))

    @staticmethod
    def state_of(recipe: Recipe) -> Path:
        """The file that remembers the finished parent run of this very recipe in this very store."""
        mark = digest([recipe.model_dump(mode="json"), tracking_uri()])[:12]
        return home() / "pipelines" / f"{recipe.name}-{mark}.json"

    @classmethod
    def unchanged(cls, recipe: Recipe) -> Pipeline:
        """A run in which every stage is reused: the finished run of the same recipe, if there was one, is its record.

        Nothing new would be in MLflow, so it is not asked (importing it takes seconds).
        """
        state = cls.state_of(recipe)
        kept = read_object(state, parent=str, finished=bool) or {}
        if kept.get("finished"):
            return cls(recipe, kept.get("parent"), state, recorded=True)
        try:
            return cls.open(recipe, Patience(min(recipe.tracking.timeout_s, 15.0)))
        except Unreachable as error:
            log.warning("nothing had to be run, and nothing was recorded: %s", error)
            return cls(recipe, None, state, recorded=True)

    def summary(self) -> dict[str, Any]:
        """What `--summary` writes."""
        evaluation: dict[str, Any] = {}
        differences: dict[str, Any] = {}
        if "evaluate" in self.results:
            path = self.results["evaluate"].artifact.path / "results.json"
            body = read_object(path, evaluation=dict, differences=dict) or {}
            evaluation, differences = body.get("evaluation") or {}, body.get("differences") or {}
        return {
            "recipe": self.recipe.name,
            "seed": self.recipe.seed,
            "parent_run_id": self.parent,
            "seconds": round(time.monotonic() - self.began, 3),
            "stages": {name: result.summary() for name, result in self.results.items()},
            "evaluation": evaluation,
            "differences": differences,
        }

    def close(self, status: str = "FINISHED") -> dict[str, Any]:
        """End the parent run; link scores to models and register the last checkpoint. Returns the summary."""
        summary = self.summary()
        if self.recorded:
            return summary
        if self.alive:
            self.alive.stop()
        from tasks import tracking

        final = _final(summary)
        patience = Patience(5.0 if status == "KILLED" else self.recipe.tracking.timeout_s)
        try:
            if status == "FINISHED":
                patience.run(lambda: self._link(summary))
            if self.parent:
                patience.run(lambda: tracking.end_pipeline(self.parent or "", status, summary, final))
            told = True
        except TrackerError as error:
            log.warning("MLflow was not told how the run ended (%s); it is kept for `whetstone sync`", error)
            told = False
            if self.parent and status != "KILLED":
                outbox.add_run(self.parent, {"kind": "pipeline", "status": status, "summary": summary, "final": final})
        if self.parent:
            index.end(self.parent, status, summary, final)
        if status == "FINISHED":
            write_atomic(self.state, json.dumps({"parent": self.parent, "finished": True}))
        if self.claim and status == "KILLED":
            self.claim.leave(status, told=told)
        elif self.claim:
            self.claim.release()
        return summary

    def _link(self, summary: dict[str, Any]) -> None:
        from tasks import tracking

        artifact_of = {name: result.artifact for name, result in self.results.items()}
        evaluated = self.results.get("evaluate")
        last: str | None = None
        for checkpoint in ("base", "sft", "rlvr"):
            holder = artifact_of.get("sft" if checkpoint == "base" else checkpoint)
            model_id = logged_model(holder, checkpoint) if holder else None
            if model_id is None:
                continue
            last = model_id
            if evaluated and evaluated.status == "ran" and evaluated.artifact.run_id:
                for task, metrics in summary["evaluation"].get(checkpoint, {}).items():
                    values = {m: cell["value"] for m, cell in metrics.items()}
                    tracking.model_scores(model_id, evaluated.artifact.run_id, task, values, evaluated.artifact.key)
        if last is not None and evaluated is not None and evaluated.status == "ran":
            name = self.recipe.tracking.register_model or self.recipe.name
            tags = {"whetstone.recipe": self.recipe.name, "whetstone.seed": str(self.recipe.seed)}
            tracking.register(last, name, tags | {"whetstone.parent_run": self.parent or ""})


def _final(summary: dict[str, Any]) -> dict[str, float]:
    """Scores of the last checkpoint and stage seconds, as metrics of the parent run."""
    out = {f"seconds/{name}": about["seconds"] for name, about in summary["stages"].items()}
    for checkpoint, tasks in summary["evaluation"].items():
        for task, metrics in tasks.items():
            out |= {f"{checkpoint}/{task}/{m}".replace("@", "_at_"): cell["value"] for m, cell in metrics.items()}
    return out


def model_folder(results: dict[str, StageResult]) -> Path | None:
    """Where the newest trained checkpoint of the run lies."""
    for stage in ("rlvr", "sft"):
        if stage in results:
            return results[stage].artifact.path / "model"
    return None
