"""What this home knows: runs by id, artifacts by name and by the digest that their readers recorded. Imports no MLflow."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.base.errors import UserError, did_you_mean
from pipelines.recipe.stage_kind import MODEL, SCORES, kind_of_run
from tasks.environment import records_folder, runs_folder
from tasks.store import artifacts, index
from tasks.store.artifacts import Artifact

log = logging.getLogger("whetstone.known")


class NotFound(UserError):
    """No run, model or experiment of that name is known here."""


@dataclass(frozen=True)
class Evaluated:
    """A name that was asked for, as the evaluation of a checkpoint."""

    name: str
    checkpoint: str
    artifact: Artifact
    """Of the stage evaluate."""
    run: dict[str, Any] | None


class Known:
    """The artifacts and runs of this home, read once.

    Args:
        records: take manifests and reports that were fetched from MLflow for artifacts whose contents are not here.
    """

    def __init__(self, *, records: bool = False) -> None:
        self.records = records

    @cached_property
    def artifacts(self) -> list[Artifact]:
        """Every artifact, newest first, unverified; after those with contents the others."""
        return artifacts.all_of(runs_folder()) + (artifacts.all_of(records_folder()) if self.records else [])

    @cached_property
    def runs(self) -> list[dict[str, Any]]:
        """Every pipeline run, newest first."""
        return index.runs()

    def forget(self) -> None:
        """Read the artifacts again: some have come."""
        self.__dict__.pop("artifacts", None)

    def complete(self, artifact: Artifact) -> bool:
        """Whether all that an artifact was made from is here."""
        digests = [str(d) for a in self.chain(artifact) for d in (a.parts.get("inputs") or {}).values()]
        return all(self.by_digest(digest) is not None for digest in digests)

    def by_digest(self, digest: str, near: Artifact | None = None) -> Artifact | None:
        """The artifact with these contents; of several, one that the same pipeline run knew."""
        matching = [a for a in self.artifacts if a.digest == digest]
        keys = {str(s.get("key")) for run in self.runs if near and near.key in _keys(run) for s in _stages(run)}
        return next((a for a in matching if a.key in keys), matching[0] if matching else None)

    def by_name(self, name: str) -> Artifact | None:
        """The artifact of `stage-key` (the key may be cut short), of its folder or of the model folder in it."""
        path = Path(name)
        if path.is_dir():
            folders = [p for p in (path.resolve(), path.resolve().parent) if p.parent == runs_folder().resolve()]
            name = folders[0].name if folders else name
        matching = [a for a in self.artifacts if a.name.startswith(name) and len(name) > len(a.stage) + 4]
        return matching[0] if len(matching) == 1 else None

    def run(self, name: str, *, newest: bool = False) -> dict[str, Any] | None:
        """The run whose id starts with `name`, or whose name or experiment it is; of several with one name the one that finished.

        Args:
            newest: where several of one name finished, take the last of them.

        Raises:
            NotFound: several runs match, and it is not to be said which is meant.
        """
        matching = index.meant(name, self.runs, shortest=4)
        if len(matching) < 2:
            return matching[0] if matching else None
        finished = [run for run in matching if run["status"] == "FINISHED"]
        alike = len({run["name"] for run in matching}) == 1 and not matching[0]["run_id"].startswith(name)
        if not alike or not finished or (len(finished) > 1 and not newest):
            told = f"{len(matching)} runs have this name or beginning ({index.listed(matching)})"
            raise NotFound(name, told, "Give more of the id.")
        chosen = finished[0]["run_id"][:8]
        log.warning("%d runs are called %s: this is the newest that finished, %s", len(matching), name, chosen)
        return finished[0]

    def unknown(self, name: str) -> NotFound:
        """The error for a name that means nothing here, with the nearest ones that do."""
        ids = [r["run_id"][: max(8, len(name))] for r in self.runs[:50]]
        names = [a.name for a in self.artifacts if makes(a) == MODEL]
        experiments = [f"experiment:{r.get('experiment')}" for r in self.runs]
        listed = dict.fromkeys([*ids, *(r["name"] for r in self.runs), *names, *experiments])
        hint = did_you_mean(name, listed)
        if not listed:
            hint = "Of other machines' runs MLflow is asked by their ids; `whetstone runs --remote` lists them."
        elif hint.startswith("Known") and len(hint) > 400:
            hint = "See `whetstone runs`."
        return NotFound(name, "no run, model or experiment of this name is known here", hint)

    def stage_of(self, run: dict[str, Any], stage: str) -> Artifact | None:
        """The artifact that a run made or reused for a stage, unverified; None where it has none here."""
        about = ((run.get("summary") or {}).get("stages") or {}).get(stage)
        if not isinstance(about, dict):
            return None
        kind = about["kind"]
        return next((a for a in self.artifacts if a.stage == kind and a.key == str(about.get("key"))), None)

    def evaluation_of(self, run: dict[str, Any], checkpoint: str = "") -> str | None:
        """The name of a run's last evaluation, of those that hold a checkpoint where one is named; None where it has none."""
        stages = ((run.get("summary") or {}).get("stages") or {}).items()
        names = [
            n
            for n, about in stages
            if isinstance(about, dict) and what_makes(about["kind"], about.get("makes")) == SCORES
        ]
        holding = [n for n in names if checkpoint in self.labels(run, n)]
        return ([*names, *holding] or [None])[-1]

    @staticmethod
    def labels(run: dict[str, Any], stage: str) -> dict[str, str]:
        """Name of a stage in a run → what the artifact of the run's evaluation `stage` calls it, where that differs."""
        about = ((run.get("summary") or {}).get("stages") or {}).get(stage) or {}
        return {str(name): str(label) for label, name in (about.get("checkpoints") or {}).items()}

    def chain(self, artifact: Artifact) -> list[Artifact]:
        """Everything an artifact was made from, as far as it is here, each after what it was made from; itself last."""
        chain: dict[str, Artifact] = {}

        def add(current: Artifact) -> None:
            for digest in (current.parts.get("inputs") or {}).values():
                source = self.by_digest(str(digest), current)
                if source is not None and source.name not in chain:
                    add(source)
            chain[current.name] = current

        add(artifact)
        return list(chain.values())


def what_makes(kind: str, told: object = None) -> str | None:
    """What stages of a kind make; None for a kind that is not installed here.

    Args:
        told: what the run or the artifact says, for a kind whose plug-in is not loaded.
    """
    return kind_of_run(kind, str(told or "")).makes or None


def makes(artifact: Artifact) -> str | None:
    """What an artifact is: data, model, samples or scores."""
    return what_makes(artifact.stage, artifact.makes)


def training(artifact: Artifact) -> list[str]:
    """How a model was trained, in words: steps and split, the advantage, another project's trainer; as far as it was so."""
    own = (artifact.parts.get("settings") or {}).get(artifact.stage) or {}
    steps, advantage = own.get("steps") or artifact.metrics.get("steps"), own.get("advantage")
    split = f" of split {own['split']}" if own.get("split") else ""
    kind = advantage.get("kind") if isinstance(advantage, dict) else None
    told = [f"{steps:g} steps{split}" if isinstance(steps, int | float) else "", f"advantage {kind}" if kind else ""]
    told.append(f"trainer {own['trainer']} {own.get('version')}" if own.get("trainer") else "")
    return [each for each in told if each]


def _stages(run: dict[str, Any]) -> list[dict[str, Any]]:
    stages = ((run.get("summary") or {}).get("stages") or {}).values()
    return [about for about in stages if isinstance(about, dict)]


def _keys(run: dict[str, Any]) -> set[str]:
    return {str(about.get("key")) for about in _stages(run)}
