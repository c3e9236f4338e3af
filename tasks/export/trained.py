"""The model that a name on the command line means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.base.errors import UserError, did_you_mean
from pipelines.contract.model_settings import Model
from pipelines.recipe.stage_kind import MODEL
from tasks import brought
from tasks.environment import runs_folder
from tasks.store import artifacts
from tasks.store.artifacts import Artifact
from tasks.store.known import Known, makes, what_makes

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """A model that a stage published."""

    artifact: Artifact
    stage: str
    """What its recipe calls the stage; its kind where no run is known that has it."""
    run: dict[str, Any] | None
    known: Known

    @property
    def folder(self) -> Path:
        """In Hugging Face's format, with tokenizer, chat template and generation config."""
        return self.artifact.path / "model"

    @property
    def recipe(self) -> str:
        """The name of the recipe that made it."""
        if not self.run:
            return self.artifact.stage
        return str(
            self.run.get("summary", {}).get("recipe") or self.run["name"]
        )  # a run is named after its preset and changes

    @property
    def settings(self) -> Model:
        """How it is loaded: as its stage loaded the model that it started from."""
        own = (self.artifact.parts.get("settings") or {}).get("model") or {}
        kept = {name: own[name] for name in ("dtype", "weights_dtype", "attention", "trust_remote_code") if name in own}
        return Model(path=str(self.folder), **kept)


def find(name: str, progress: Progress = lambda what: None) -> Trained:
    """The model of `RUN` (of its last stage that made one), of `RUN/STAGE`, or of an artifact by its name or folder.

    A run is named by its id, its first characters, or its name; a model that is not here is fetched from MLflow.

    Raises:
        NotFound: no run or model has this name, here or in MLflow.
        UserError: the run made no model, or has no such stage, or did not finish and no stage is named; or its files are damaged.
    """
    known = Known()
    artifact = known.by_name(name)
    if artifact is not None:
        if makes(artifact) != MODEL:
            raise UserError(name, f"this is {makes(artifact)} and no model", "Name a run, or a stage that trains.")
        return Trained(_checked(artifact.stage, artifact.key, name), artifact.stage, _run_of(artifact, known), known)
    plain, _, stage = name.partition("/")
    run = known.run(plain, newest=True) or brought.remote_run(plain)
    if run is None:
        raise known.unknown(plain)
    stages = (run.get("summary") or {}).get("stages") or {}
    models = [each for each, about in stages.items() if what_makes(str(about.get("kind")), about.get("makes")) == MODEL]
    if not models:
        raise UserError(
            plain, f"this run ({run['status']}) made no model", "Name one that trained, see `whetstone runs`."
        )
    if stage and stage not in models:
        raise UserError(name, f"no stage {stage!r} of this run made a model", did_you_mean(stage, models))
    chosen = stage or models[-1]
    if not stage and run["status"] != "FINISHED":  # what it was to end with may be missing
        raise UserError(
            plain,
            f"this run has not finished ({run['status']}); the last model that it made is of its stage {chosen!r}",
            f"Name the stage, if it is the model that you want: {plain}/{chosen}.",
        )
    if brought.stages(run, stages, progress):
        known.forget()
    about = stages[chosen]
    return Trained(_checked(str(about["kind"]), str(about.get("key")), f"{plain}/{chosen}"), chosen, run, known)


def _checked(kind: str, key: str, name: str) -> Artifact:
    artifact, damage = artifacts.find(runs_folder(), kind, key)
    if artifact is None:
        what = f"cannot be used ({damage})" if damage else "is not here, and MLflow has no files of it"
        raise UserError(name, f"its artifact {artifacts.name_of(kind, key)} {what}", "Run its recipe again.")
    return artifact


def _run_of(artifact: Artifact, known: Known) -> dict[str, Any] | None:
    """The newest run that has an artifact."""
    for run in known.runs:
        for about in ((run.get("summary") or {}).get("stages") or {}).values():
            if isinstance(about, dict) and str(about.get("key")) == artifact.key:
                return run
    return None
