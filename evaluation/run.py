"""The stage: every checkpoint on every task, intervals, paired differences, per-sample logs."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from evaluation import harness, model, plots, statistics
from evaluation.samples import scores_of
from pipelines.base.errors import ModelError, RecipeError
from pipelines.contract.model_endpoint import ModelEndpoint
from pipelines.contract.model_settings import Model
from pipelines.engine import models
from pipelines.engine.ranks import Ranks
from pipelines.recipe.settings import Evaluate
from pipelines.stage.report import Report


def run(
    settings: Evaluate,
    model_settings: Model,
    *,
    checkpoints: dict[str, str],
    out: Path,
    report: Report,
    seed: int,
    differences: list[list[str]] | None = None,
    guided: Sequence[dict[str, Any]] = (),
    searched: Sequence[dict[str, Any]] = (),
    scorers: dict[int, str] | None = None,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """Write `results.json`, `samples/<checkpoint>/<task>.jsonl` and the bar chart.

    Args:
        checkpoints: label (base, sft, rlvr, rlvr-2) → folder or hub name, in the order of the graph.
        differences: (before, after) labels to compare; default: each with the one listed before it.
        guided: further columns: `name`, and labels `model` and `base` with the `weight` of their guidance. They come before their
            model's own, so that an evaluation's last column is its last model.
        searched: further columns, likewise: `name`, the label `model`, and the index of its `strategy` in `settings.search`.
        scorers: index of a strategy → folder or hub name of its reward model.
        ranks: the stage's processes, of which this is the first; default: it is the only one.

    Raises:
        RecipeError: a task cannot be loaded, or not be searched.
        ModelError: the checkpoints render prompts differently.
    """
    tasks = harness.manager(settings)
    if settings.search is not None:
        from evaluation import searching

        searching.check_tasks(tasks, settings)
    evaluation: dict[str, Any] = {}
    scores: dict[str, dict[str, list[float]]] = {}
    identity: str | None = None
    system_prompts: dict[str, str] = {}
    logs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    columns: dict[str, Any] = {each.name: each for each in settings.models if each is not None}
    columns |= _columns(checkpoints, guided, searched)
    usage: dict[str, dict[str, float]] = {}
    for index, (name, column) in enumerate(columns.items()):
        lm = _load(column, model_settings, settings, scorers or {}, seed, checkpoints, ranks or Ranks())
        if isinstance(column, _Column):
            checkpoint_identity = models.template_identity(lm.tokenizer)
            if identity not in (None, checkpoint_identity):
                raise ModelError("evaluate", f"checkpoint {name} renders prompts differently from the ones before it.")
            identity = checkpoint_identity
        if lm.system_prompt:
            system_prompts[name] = lm.system_prompt
            report.event("asked with the system prompt it was trained with", checkpoint=name, prompt=lm.system_prompt)
        before = index * len(settings.tasks)
        total = len(columns) * len(settings.tasks)
        with _decoding(lm, settings, name, report):
            evaluation[name], samples = _every_task(lm, tasks, settings, name, before, total, report)
        logs[name] = samples
        if not isinstance(column, _Column):
            usage[name] = lm.model.usage.metrics(column.price)
            for why, count in lm.refused.items():
                report.event(
                    "questions were refused; they count as incorrect", checkpoint=name, questions=count, why=why
                )
        for task, rows in samples.items():
            _write(out / "samples" / name / f"{task}.jsonl", rows, out / "report")
            of_questions = [scores_of(row) for row in rows]
            if rows and all(of_questions):
                scores.setdefault(task, {})[name] = [sum(s >= 1 for s in own) / len(own) for own in of_questions if own]
        del lm
    pairs = list(pairwise(checkpoints)) if differences is None else [(before, after) for before, after in differences]
    differences_by_task = _differences(scores, pairs, settings) | _between_tasks(scores, settings)
    differences_by_task |= _votes(evaluation, logs, searched, settings)
    body = {
        "evaluation": evaluation,
        "differences": differences_by_task,
        "template": identity,
        "system_prompts": system_prompts,
        "guided": {each["name"]: {k: each[k] for k in ("model", "base", "weight")} for each in guided},
        "searched": {each["name"]: {k: each[k] for k in ("model", "scorer", "strategy")} for each in searched},
    }
    (out / "results.json").write_text(json.dumps(body, indent=1))
    plots.bars(evaluation, out / "report" / "benchmarks.png")
    scalars = {
        f"{c}/{t}/{m}": v["value"] for c, by in evaluation.items() for t, ms in by.items() for m, v in ms.items()
    }
    scalars |= {f"{name}/{metric}": value for name, of in usage.items() for metric, value in of.items()}
    report.metrics(0, {k.replace("@", "_at_"): v for k, v in scalars.items()})
    return scalars


class _Column(NamedTuple):
    """A model, and how it answers."""

    path: str
    guidance: tuple[str, float] | None = None
    """Path of the base, and the weight."""
    strategy: int | None = None
    """Index of the search."""


def _columns(
    checkpoints: dict[str, str], guided: Sequence[dict[str, Any]], searched: Sequence[dict[str, Any]]
) -> dict[str, _Column]:
    """Every column, those of a model together, its own last.

    >>> guided = [{"name": "rlvr-w2", "model": "rlvr", "base": "sft", "weight": 2.0}]
    >>> list(_columns({"sft": "a", "rlvr": "b"}, guided, [{"name": "sft-best8", "model": "sft", "strategy": 0}]))
    ['sft-best8', 'sft', 'rlvr-w2', 'rlvr']
    """
    columns: dict[str, _Column] = {}
    for label, path in checkpoints.items():
        for each in guided:
            if each["model"] == label:
                columns[each["name"]] = _Column(path, guidance=(checkpoints[each["base"]], each["weight"]))
        for each in searched:
            if each["model"] == label:
                columns[each["name"]] = _Column(path, strategy=each["strategy"])
        columns[label] = _Column(path)
    return columns


def _load(
    column: _Column | ModelEndpoint,
    model_settings: Model,
    settings: Evaluate,
    scorers: dict[int, str],
    seed: int,
    checkpoints: dict[str, str],
    ranks: Ranks,
) -> Any:
    if isinstance(column, ModelEndpoint):
        from evaluation.endpoint import EndpointLM

        path = next(iter(checkpoints.values()), None)
        tokenizer = models.load_tokenizer(path, model_settings) if path is not None else None
        return EndpointLM(column, "evaluate.models", seed=seed, tokenizer=tokenizer)
    lm = ranks.load(_load_model, column, model_settings, settings, scorers, seed)
    lm.ranks = ranks
    return lm


@contextlib.contextmanager
def _decoding(lm: Any, settings: Evaluate, name: str, report: Report) -> Iterator[None]:
    """Have servers draw the answers of a model that is loaded, where the stage has a `sampler`."""
    if settings.sampler is None or not isinstance(lm, model.SamplerLM):
        yield
        return
    from pipelines.engine.server import serving

    work = report.folder / f"served-{name}"  # models of one stage may differ in size
    with serving(settings.sampler, lm.sampler, lm.tokenizer, work=work, event=report.event) as server:
        lm.decoder = server
        yield
    shutil.rmtree(work, ignore_errors=True)


def _load_model(
    column: _Column, model_settings: Model, settings: Evaluate, scorers: dict[int, str], seed: int
) -> model.SamplerLM:
    shown: dict[str, Any] = {"guidance": column.guidance, "batch_size": settings.batch_size, "seed": seed}
    if settings.search is None:
        return model.load(column.path, model_settings, **shown)
    from evaluation import searching

    search = scorer = None
    if column.strategy is not None:
        search, scorer = settings.search[column.strategy], scorers.get(column.strategy)
    return searching.load_searched(column.path, model_settings, search, scorer=scorer, **shown)


def _votes(
    evaluation: dict[str, Any], logs: dict[str, Any], searched: Sequence[dict[str, Any]], settings: Evaluate
) -> dict[str, Any]:
    """Put the votes at equal tokens among the metrics of the searched columns; returns the paired differences to them, by task and vote."""
    differences: dict[str, Any] = {}
    if searched:
        from evaluation import searching
    for each in searched:
        column, label = each["name"], each["model"]
        for task, rows in logs[column].items():
            if not rows or searching.DRAWN not in rows[0] or scores_of(rows[0]) is None:
                continue
            cells, gains = searching.against_votes(rows, logs[label][task], settings)
            evaluation[column][task] |= cells
            for name, gain in gains.items():
                differences.setdefault(f"{task} {name}", {})[f"{label} → {column}"] = gain
    return differences


def _every_task(
    lm: Any, tasks: Any, settings: Evaluate, checkpoint: str, before: int, total: int, report: Report
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Run all tasks on one checkpoint.

    Args:
        tasks: lm-eval's task manager.
        before: tasks done on the checkpoints before this one.
        total: tasks of all checkpoints.

    Returns:
        task name → metric → value, low, high, n; and task name → one log entry per question.
    """
    metrics: dict[str, Any] = {}
    samples: dict[str, list[dict[str, Any]]] = {}
    for done, task in enumerate(settings.tasks, before):
        what = f"{checkpoint}: {task.name}"
        lm.progress = lambda answered, count, done=done, what=what: report.progress(
            done + answered / count, total, f"{what}{_paid(lm)}", unit="task"
        )
        evaluate = harness.evaluate if task.environment is None else _play
        task_metrics, task_samples = evaluate(lm, tasks, task, settings)
        metrics |= task_metrics
        samples |= task_samples
        report.progress(done + 1, total, what, unit="task", force=True)
    return metrics, samples


def _paid(lm: Any) -> str:
    """What an endpoint's answers took so far; nothing for a model that is loaded."""
    asked = getattr(lm.model, "usage", None)
    return "" if asked is None else f" ({asked.shown(lm.model.settings.price)})"


def _play(*arguments: Any) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """`agent.evaluate`, imported where a task has an environment: most have none."""
    from evaluation import agent

    return agent.evaluate(*arguments)


def _between_tasks(scores: dict[str, dict[str, list[float]]], settings: Evaluate) -> dict[str, Any]:
    """Per task with `against`, every checkpoint's difference to that task, paired by question.

    Raises:
        RecipeError: they do not ask equally many questions.
    """
    out: dict[str, Any] = {}
    for task in settings.tasks:
        for checkpoint, values in scores.get(task.name, {}).items() if task.against else ():
            others = scores.get(str(task.against), {}).get(checkpoint, [])
            if len(others) != len(values):
                raise RecipeError(
                    f"evaluate.tasks.{task.name}.against",
                    f"{task.against} asks {len(others)} questions and {task.name} {len(values)}",
                    "Give both the same size, seed and problems.",
                )
            cell = statistics.difference_cell(others, values, confidence=settings.confidence)
            out.setdefault(f"{task.name} vs {task.against}", {})[checkpoint] = cell
    return out


def _differences(
    scores: dict[str, dict[str, list[float]]], pairs: list[tuple[str, str]], settings: Evaluate
) -> dict[str, Any]:
    """Per task, each pair of checkpoints that both have scores, paired by question."""
    out: dict[str, Any] = {}
    for task, by_checkpoint in scores.items():
        for before, after in pairs:
            if before not in by_checkpoint or after not in by_checkpoint:
                continue
            old, new = by_checkpoint[before], by_checkpoint[after]
            cell = statistics.difference_cell(old, new, confidence=settings.confidence)
            out.setdefault(task, {})[f"{before} → {after}"] = cell
    return out


def _write(path: Path, rows: list[dict[str, Any]], report: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines := "".join(json.dumps(r, default=str) + "\n" for r in rows))
    if r"\ufffc" in lines:
        from pipelines.data import thumbnails  # most questions have no image

        thumbnails.note(report, lines)


def checkpoints_of(job: dict[str, Any]) -> dict[str, str]:
    """Where each wanted checkpoint is: stage artifacts, or the recipe's own model for the base.

    Args:
        job: `checkpoints`, labels of the inputs and `base`, in order; `base_in`, the input that keeps a fresh base.
    """
    inputs = job["inputs"]
    out: dict[str, str] = {}
    base = job["settings"]["model"].get("path")
    for label in job["checkpoints"]:
        if label == "base":
            keeper = job.get("base_in")
            path = base or (str(Path(inputs[keeper]) / "base") if keeper in inputs else None)
        else:
            path = str(Path(inputs[label]) / "model") if label in inputs else None
        if path:
            out[label] = path
    return out
