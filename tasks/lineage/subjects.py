"""Names on a command line to evaluated checkpoints: runs, models and experiments, from the local home; MLflow where they are not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluation import samples
from evaluation.comparison import Subject
from evaluation.source_metrics import of_source
from pipelines.base import names
from pipelines.base.errors import UserError, did_you_mean
from pipelines.base.files import read_manifest
from pipelines.base.labels import numbered
from pipelines.recipe.settings import CHECKPOINTS
from pipelines.recipe.stage_kind import BASE, MODEL, SCORES, stage_kinds
from pipelines.stage.report import history, lines_of
from tasks import brought, environment
from tasks.environment import runs_folder
from tasks.store import artifacts
from tasks.store.artifacts import Artifact, stored_scores
from tasks.store.known import Evaluated, Known, makes
from tasks.tracking import fetch
from tasks.tracking.names import flatten
from tasks.tracking.time_budget import TimeBudget, TrackerError

log = logging.getLogger("whetstone.subjects")
Progress = Callable[[str], None]


def find(names: list[str], progress: Progress = lambda what: None) -> list[Subject]:
    """The checkpoints that the names mean, in that order, each once.

    Args:
        names: ids of runs or their first characters, names of runs, `stage-key` or folders of models, `experiment:NAME`; a run
            or model may be followed by `:base`, `:sft` or `:rlvr`.

    Raises:
        NotFound: a name means nothing, here and in MLflow.
        UserError: a run has no evaluation, or its artifact is damaged.
    """
    known = Known(records=True)
    evaluated = [e for name in names for e in _evaluated(name, known)]
    unique = {(e.artifact.key, e.checkpoint): e for e in evaluated}
    for run in [each.run for each in unique.values() if each.run is not None]:
        brought.records(run, (run.get("summary") or {}).get("stages") or {}, progress)
    known.forget()
    subjects = []
    for number, each in enumerate(unique.values(), 1):
        progress(f"reading the answers of {each.name} ({number} of {len(unique)})")
        subjects.append(_subject(each, known))
    return subjects


def single(name: str, like: Artifact | None = None, *, with_model: bool = False) -> tuple[Evaluated, Subject]:
    """The checkpoint that a name means.

    Args:
        like: of several evaluations of a model, one that was made with the settings of this one is taken.
        with_model: fetch its model from MLflow too, where a run is named whose model is not here.

    Raises:
        NotFound: as `find`.
        UserError: it means several.
    """
    known = Known()
    evaluated = _evaluated(name, known, like)
    if len(evaluated) != 1:
        raise UserError(name, f"{len(evaluated)} runs; name one of them.")
    if with_model:
        _bring_model(evaluated[0], known)
    return evaluated[0], _subject(evaluated[0], known)


def of_evaluation(artifact: Artifact, checkpoint: str) -> Subject:
    """A checkpoint of an evaluation.

    Raises:
        UserError: it has no such checkpoint.
    """
    name = artifact.path.name
    return _subject(Evaluated(name, _checkpoint(artifact, checkpoint, name), artifact, None), Known())


def _evaluated(name: str, known: Known, like: Artifact | None = None) -> list[Evaluated]:
    if name.startswith("experiment:"):
        return _experiment(name, known)
    plain, _, checkpoint = name.rpartition(":")
    if not plain or (
        checkpoint not in CHECKPOINTS and (known.run(name) or not (known.run(plain) or known.by_name(plain)))
    ):
        plain, checkpoint = name, ""
    run = known.run(plain)
    if run is not None:
        return [_of_run(run, _label(run, checkpoint), checkpoint, known)]
    model = known.by_name(plain)
    if model is not None:
        return [_of_model(model, name, checkpoint, known, like)]
    run = _remote(plain, known)
    return [_of_run(run, _label(run, checkpoint), checkpoint, known)]


def _bring_model(each: Evaluated, known: Known) -> None:
    """Fetch what a run's evaluation has scored, unless it is here."""
    digest = (each.artifact.parts.get("inputs") or {}).get(each.checkpoint)
    if each.run is None or digest is None or known.by_digest(str(digest), each.artifact) is not None:
        return
    stage = known.evaluation_of(each.run, each.checkpoint)
    names = {label: name for name, label in known.labels(each.run, str(stage)).items()}
    wanted = names.get(each.checkpoint, each.checkpoint)
    if wanted in each.run["summary"]["stages"] and brought.stages(each.run, [wanted]):
        known.forget()


def recipe_of(artifact: Artifact) -> str:
    """The name of the recipe that made an artifact."""
    return str((read_manifest(artifact.path) or {}).get("recipe") or artifact.stage)


def _label(run: dict[str, Any], checkpoint: str) -> str:
    return run["run_id"][:8] + (f":{checkpoint}" if checkpoint else "")


def _experiment(name: str, known: Known) -> list[Evaluated]:
    wanted = name.partition(":")[2]
    runs = [r for r in known.runs if r.get("experiment") == wanted] or [*brought.remote_runs(wanted)]
    runs = [r for r in runs if r["status"] == "FINISHED"]
    if not runs:
        experiments = {str(r.get("experiment")) for r in known.runs}
        raise UserError(name, "no finished run of this experiment is known here", did_you_mean(wanted, experiments))
    with_scores = [r for r in runs if known.evaluation_of(r) is not None]
    if not with_scores:
        raise UserError(name, f"none of its {len(runs)} runs has an evaluation here.")
    return [_of_run(run, _label(run, ""), "", known) for run in reversed(with_scores)]


def _of_run(run: dict[str, Any], name: str, checkpoint: str, known: Known) -> Evaluated:
    stage = known.evaluation_of(run, checkpoint)
    if stage is None:
        raise UserError(
            name,
            f"this run ({run['status']}) has no evaluation",
            "Run its recipe with --only evaluate, and compare that run.",
        )
    about = run["summary"]["stages"][stage]
    artifact, damage = artifacts.find(runs_folder(), about.get("kind", stage), str(about.get("key")))
    if artifact is None:
        artifact = _fetch(run, about, name, damage)
    label = known.labels(run, stage).get(checkpoint, checkpoint)
    return Evaluated(name, _checkpoint(artifact, label, name), artifact, run)


def _of_model(model: Artifact, name: str, checkpoint: str, known: Known, like: Artifact | None) -> Evaluated:
    """A model by its evaluation: the newest that read it, those with the settings of `like` first."""
    if makes(model) == SCORES:
        readers = [model]
    else:
        evaluations = [a for a in known.artifacts if makes(a) == SCORES]
        readers = [a for a in evaluations if model.digest in (a.parts.get("inputs") or {}).values()]
        readers.sort(key=lambda a: like is None or a.parts.get("settings") != like.parts.get("settings"))
    for reader in readers:
        artifact, damage = artifacts.find(runs_folder(), reader.stage, reader.key)
        if artifact is not None:
            labels = [n for n, digest in (reader.parts.get("inputs") or {}).items() if digest == model.digest]
            wanted = checkpoint or next(iter(labels), "")
            return Evaluated(name, _checkpoint(artifact, wanted, name), artifact, None)
        log.warning("%s cannot be used: %s", reader.path.name, damage)
    raise UserError(name, "no evaluation of this model is here", "Run its recipe with --only evaluate.")


def _checkpoint(artifact: Artifact, wanted: str, name: str) -> str:
    """The wanted checkpoint of an evaluation, else its last."""
    there = checkpoints(artifact)
    if wanted and wanted not in there:
        raise UserError(name, f"its evaluation has no checkpoint {wanted!r}", did_you_mean(wanted, there))
    if not there:
        raise UserError(name, "its evaluation stored no answers.")
    return wanted or there[-1]


def checkpoints(artifact: Artifact) -> list[str]:
    """What an evaluation has answers of, in its order."""
    folders = {p.name for p in (artifact.path / "samples").glob("*") if p.is_dir()}
    order = dict.fromkeys([*stored_scores(artifact.path), *CHECKPOINTS, *sorted(folders)])
    return [c for c in order if c in folders]


def _remote(name: str, known: Known) -> dict[str, Any]:
    """A run that only MLflow knows; nothing but an id is worth the seconds that asking takes."""
    run = brought.remote_run(name)
    if run is None:
        raise known.unknown(name)
    return run


def _fetch(run: dict[str, Any], about: dict[str, Any], name: str, damage: str | None) -> Artifact:
    """An evaluation from MLflow, held against its key.

    Raises:
        UserError: it is neither here nor in MLflow.
    """
    key = str(about.get("key"))
    what = f"{name}: its evaluation {artifacts.name_of('evaluate', key)} "
    what += f"cannot be used here ({damage})" if damage else "is not here"
    advice = "Run its recipe with --only evaluate to make it again."
    if not about.get("run_id"):
        raise UserError(f"{what}, and it was never sent to MLflow", fix=advice)
    environment.prepare()
    environment.check_reachable()
    try:
        artifact, mismatch = fetch.from_mlflow(
            about.get("kind", "evaluate"), key, brought.experiment_of(run), TimeBudget(None)
        )
    except TrackerError as error:
        raise UserError(f"{what}, nor in MLflow ({error})", fix=advice) from None
    if artifact is None:
        raise UserError(f"{what}, and not in MLflow: {mismatch or 'MLflow holds no files for it'}", fix=advice)
    return artifact


def _subject(each: Evaluated, known: Known) -> Subject:
    artifact, notes = each.artifact, []
    inputs = artifact.parts.get("inputs") or {}
    trained = known.by_digest(str(inputs[each.checkpoint]), artifact) if each.checkpoint in inputs else None
    chain = known.chain(trained) if trained is not None else []
    made_of = dict(zip(numbered([a.stage for a in chain]), chain, strict=True)) | {artifact.stage: artifact}
    before = CHECKPOINTS[: CHECKPOINTS.index(each.checkpoint)] if each.checkpoint in CHECKPOINTS else ()
    for label, recorded in inputs.items():
        if (
            label in (each.checkpoint, *before)
            and each.checkpoint != BASE
            and known.by_digest(str(recorded), artifact) is None
        ):
            notes.append(
                f"{each.name}: the {label} artifact that was evaluated is not here, so its settings, curves and cost are missing"
            )
    settings: dict[str, str] = {}
    for stage, source in made_of.items():
        for name, value in flatten(source.parts.get("settings") or {}):
            settings[name.removesuffix(".kind")] = value
        for name, value in (source.parts.get("files") or {}).items():
            settings[f"{stage} file {name}"] = str(value)[:12]
    reported, tasks = stored_scores(artifact.path).get(each.checkpoint) or {}, _tasks(artifact)
    first, last = checkpoints(artifact)[0], chain[-1] if chain else artifact
    tags = (each.run or {}).get("tags") or {}
    return Subject(
        name=each.name,
        run_id=each.run["run_id"] if each.run else None,
        seed=last.parts.get("seed"),
        checkpoint=each.checkpoint,
        artifact=last.name,
        recipe=recipe_of(last),
        presets=tuple(filter(None, tags.get("whetstone.presets", "").split(", "))),
        overrides=tuple(names.split(tags.get("whetstone.set", ""))),
        made_from=tuple(source.name for source in chain[:-1]),
        settings=settings,
        samples={
            c: _samples(artifact.path / "samples" / c, [*reported, *tasks])
            for c in dict.fromkeys((first, each.checkpoint))
        },
        reported=reported,
        tasks=tasks,
        curves=_curves(made_of),
        cost={} if notes else _cost(made_of, artifact, each.checkpoint),
        code={
            f"{s} {name}": str(value)
            for s, a in made_of.items()
            for name, value in {**(a.parts.get("source") or {}), **(a.parts.get("versions") or {})}.items()
        },
        notes=notes,
        evaluation=artifact.path,
        model=_weights(each.checkpoint, trained, artifact, known),
    )


def _weights(checkpoint: str, trained: Artifact | None, evaluation: Artifact, known: Known) -> Path | None:
    """Where the weights of a checkpoint lie; a base model that nobody trained is the recipe's own."""
    if checkpoint != BASE:
        return trained.path / "model" if trained is not None and (trained.path / "model").is_dir() else None
    for digest in (evaluation.parts.get("inputs") or {}).values():
        source = known.by_digest(str(digest), evaluation)
        if source is not None and (source.path / "base").is_dir():
            return source.path / "base"
    path = ((evaluation.parts.get("settings") or {}).get("model") or {}).get("path")
    return Path(path).expanduser() if isinstance(path, str) and Path(path).expanduser().is_dir() else None


def _samples(folder: Path, order: list[str]) -> dict[str, dict[str, samples.Sample]]:
    """task → problem → answers, in this order of the benchmarks; what it lacks comes last."""
    paths = {path.stem: path for path in sorted(folder.glob("*.jsonl"))}
    return {task: samples.read(paths[task]) for task in dict.fromkeys([*order, *paths]) if task in paths}


def _tasks(artifact: Artifact) -> dict[str, dict[str, Any]]:
    """task → how it was asked; the number of problems is told apart from it."""
    settings = (artifact.parts.get("settings") or {}).get("evaluate") or {}
    listed = [t for t in settings.get("tasks") or [] if isinstance(t, dict)]
    return {str(t.get("name")): {k: v for k, v in t.items() if k not in ("name", "limit")} for t in listed}


def _curves(made_of: dict[str, Artifact]) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for stage, artifact in reversed(made_of.items()):
        kind = stage_kinds().get(artifact.stage)
        names = kind.headlines if kind else ()
        for line in history(artifact.path / "report" / "spool.jsonl") if names else []:
            for name in (*names, *sorted(filter(of_source, line["values"]))):
                if name in line["values"]:
                    curves.setdefault(f"{stage}: {name}", []).append((line["step"], line["values"][name]))
    return curves


def _cost(made_of: dict[str, Artifact], evaluation: Artifact, checkpoint: str) -> dict[str, float]:
    cost = {f"seconds {stage}": a.seconds for stage, a in made_of.items()}
    trained = sampled = completions = 0.0
    for artifact in (a for a in made_of.values() if makes(a) == MODEL):
        for line in lines_of(artifact.path / "report" / "spool.jsonl"):
            values = line["values"] if line["kind"] == "metrics" else {}
            trained += values.get("tokens/trained", 0.0)
            completions += values.get("rollout/rows", 0.0)
            sampled += values.get("rollout/rows", 0.0) * values.get("rollout/length_mean", 0.0)
    cost["seconds in all"] = sum(cost.values())
    return cost | {"tokens trained": trained, "tokens sampled": sampled, "completions": completions}
