"""lm-eval tasks by name: those of `evaluation/benchmarks`, the recipe's, or any that lm-eval installs; run to metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evaluation import programs, statistics
from evaluation.benchmark_files import BENCHMARKS
from evaluation.samples import TRUNCATED
from pipelines.base import intervals
from pipelines.base.errors import RecipeError, UserError, did_you_mean
from pipelines.data.chat import with_system_prompt
from pipelines.recipe.settings import Evaluate, Task

LIKELIHOODS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling")
"""Kinds of output that need log-probabilities of given answers."""
PART = "part"
"""Column of a question: the part of the benchmark whose share of correct answers is a metric of its own."""
MESSAGES = "messages"
"""Column of a question that is a conversation: JSON text of its messages."""
UNLOGGED = ("tests",)
"""Columns of a question that no log holds: hidden tests, which are long, and which nobody should find in a corpus."""
DRAWN, SCORED = "drawn_tokens", "scored_tokens"
"""Of an answer, in a stage that searches: metrics, and in a question's log the mean over its answers."""


def own_tasks(folder: Path = BENCHMARKS) -> list[str]:
    """Names of the tasks whose YAMLs lie in a folder."""
    return sorted(p.stem for p in folder.rglob("*.yaml") if not p.stem.startswith("_"))


def manager(settings: Evaluate) -> Any:
    """A task manager that knows what the recipe names; lm-eval's thousands are indexed only when needed.

    Raises:
        RecipeError: an unknown task, or one that would run programs outside of the sandbox.
    """
    from lm_eval.tasks import TaskManager

    folders = [BENCHMARKS] + ([Path(settings.include)] if settings.include else [])
    known_names = {name for folder in folders for name in own_tasks(folder)}
    lm_tasks = [t for t in settings.tasks if t.environment is None]
    needs_all = any(t.asks not in known_names for t in lm_tasks)
    task_manager = TaskManager(include_path=[str(f) for f in folders], include_defaults=needs_all)
    for task in lm_tasks:
        if task.asks not in task_manager.all_tasks:
            hint = did_you_mean(task.asks, task_manager.all_tasks if needs_all else known_names)
            raise RecipeError("evaluate.tasks", f"no lm-eval task called {task.asks!r}", hint)
        if unsafe := next(iter(_unsafe(task_manager.task_index, task.asks)), None):
            raise RecipeError(
                "evaluate.tasks",
                f"{unsafe} runs programs that the model wrote where the evaluation runs (unsafe_code)",
                f"In the sandbox run {', '.join(programs.TASKS)}, and rows of a benchmark of yours with verifier python.",
            )
    return task_manager


def _below(index: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, configuration) of a task, group or tag of lm-eval's and of everything below it; a group may change what is below it."""
    entry = index.get(name)
    config: dict[str, Any] = (entry.cfg if entry is not None else None) or {}
    yield name, config
    listed = config.get("task")
    for child in listed if isinstance(listed, list) else []:
        if isinstance(child, dict):
            yield str(child.get("task")), child
        child_name = child.get("task") if isinstance(child, dict) else child
        if isinstance(child_name, str) and child_name != name:
            yield from _below(index, child_name)
    for tagged in sorted(entry.tags) if entry is not None and not config else []:  # a tag, with the names of its tasks
        yield from _below(index, tagged)


def _unsafe(index: dict[str, Any], name: str) -> Iterator[str]:
    """Tasks of a task, group or tag of lm-eval's that are marked as running programs of the model's."""
    return (each for each, config in _below(index, name) if config.get("unsafe_code"))


def likelihood_tasks(index: dict[str, Any], name: str) -> Iterator[str]:
    """Tasks of a task, group or tag of lm-eval's that ask how likely given answers are."""
    return (each for each, config in _below(index, name) if str(config.get("output_type")) in LIKELIHOODS)


def image_tasks(index: dict[str, Any], name: str) -> Iterator[str]:
    """Tasks of a task, group or tag of lm-eval's whose questions have images."""
    return (each for each, config in _below(index, name) if config.get("doc_to_image"))


def load_task(tasks: Any, task: Task) -> dict[str, Any]:
    """The task's objects by name (a group gives several), with the recipe's overrides in place.

    Raises:
        RecipeError: its data cannot be loaded.
    """
    from lm_eval.tasks import get_task_dict

    member = {"task": task.asks, "dataset_kwargs": task.rows}
    try:
        loaded = get_task_dict([{"group": f"of {task.name}", "task": [member]} if task.rows else task.asks], tasks)
    except UserError:
        raise
    except (OSError, ValueError, ConnectionError, ImportError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise RecipeError(
            "evaluate.tasks",
            f"the data of {task.asks} could not be loaded ({first})",
            "Look whether it needs the network or an extra package.",
        ) from error
    by_name: dict[str, Any] = {}
    _flatten(loaded, by_name)
    for lm_task in by_name.values():
        if getattr(lm_task, "MULTIMODAL", False):
            from evaluation import visual  # most tasks have texts alone

            visual.name_images(lm_task)
        if task.samples is not None:
            lm_task.set_config(key="repeats", value=task.samples)
        if task.few_shot is not None:
            lm_task.set_config(key="num_fewshot", value=task.few_shot)
        if task.sampling and lm_task.OUTPUT_TYPE == "generate_until":
            lm_task.set_config(key="generation_kwargs", value=task.sampling, update=True)
    return by_name


def _flatten(loaded: dict[Any, Any], into: dict[str, Any]) -> None:
    for name, entry in loaded.items():
        if isinstance(entry, dict):
            _flatten(entry, into)
        else:
            into[str(name)] = entry


def evaluate(
    lm: Any, tasks: Any, task: Task, settings: Evaluate
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Run one task on one checkpoint.

    Returns:
        label → metric → value, low, high, n; and label → per-question log. The label is the task's name, or the recipe's for a
        `benchmark` (`LABEL-TASK` for each task of a group).

    Raises:
        RecipeError: the task forces a mode on a model without a chat template, or its questions bring a start of the answer of their own.
    """
    from lm_eval.evaluator import evaluate as run

    by_name = load_task(tasks, task)
    chat = task.chat if task.chat is not None else bool(lm.tokenizer.chat_template)
    _check_mode(task, by_name, chat)
    for lm_task in by_name.values():
        _ask_messages(lm, lm_task)
    lm.chats, lm.prefill, lm.drawn, lm.spent, lm.thinks = chat, task.prefill, {}, {}, False
    lm.truncated = {}
    own = getattr(lm, "system_prompt", None) if chat else None  # not every lm-eval model has one
    result = run(
        lm=lm,
        task_dict=by_name,
        limit=task.limit,
        bootstrap_iters=1000,
        log_samples=True,
        apply_chat_template=chat,
        system_instruction=task.joined_system_prompt(own) or None,
        fewshot_as_multiturn=chat,
    )
    metrics: dict[str, Any] = {}
    logs: dict[str, list[dict[str, Any]]] = {}
    for name in by_name:
        samples = result["samples"][name]
        label = name if task.benchmark is None else task.name if len(by_name) == 1 else f"{task.name}-{name}"
        if samples and "scores" in samples[0]:
            metrics[label] = _sampled_metrics(samples, lm.tokenizer, settings)
            if not getattr(lm.tokenizer, "counts", True):
                metrics[label].pop("mean_length")
            tokens = [lm.drawn[name, s["doc_id"]] for s in samples if (name, s["doc_id"]) in lm.drawn]
            if tokens and (lm.thinks or task.system or task.prefill):
                means = [sum(of_question) / len(of_question) for of_question in tokens]
                metrics[label]["mean_tokens"] = statistics.count_cell(means, confidence=settings.confidence)
        else:
            reported = result["results"][name]
            metrics[label] = _reported_metrics(reported, len(samples), settings.confidence)
            metrics[label] |= _mean_metrics(reported, samples, settings.confidence)
        logs[label] = [_log(s) for s in samples]
        add_truncated(
            metrics[label], logs[label], [lm.truncated.get((name, s["doc_id"]), []) for s in samples], settings
        )
        costs = [np.mean(lm.spent[name, s["doc_id"]], axis=0) for s in samples if (name, s["doc_id"]) in lm.spent]
        for place, kind in enumerate((DRAWN, SCORED)) if costs else ():
            values = [float(cost[place]) for cost in costs]
            metrics[label][kind] = statistics.count_cell(values, confidence=settings.confidence)
            logs[label] = [row | {kind: value} for row, value in zip(logs[label], values, strict=True)]
    return metrics, logs


def _ask_messages(lm: Any, lm_task: Any) -> None:
    """Have questions that are messages reach the chat template as they are, with the tools that they offer; lm-eval renders texts.

    Such a question has the columns `messages` and `tools`, each JSON text.
    """
    by_lm_eval = lm_task.fewshot_context

    def context(doc: Any, *arguments: Any, **options: Any) -> Any:
        if not options.get("apply_chat_template") or not isinstance(doc, dict) or not doc.get(MESSAGES):
            return by_lm_eval(doc, *arguments, **options)
        messages = with_system_prompt(json.loads(doc[MESSAGES]), options.get("system_instruction"))
        tools = json.loads(doc["tools"]) if doc.get("tools") else None
        return lm.apply_chat_template(messages, **({"tools": tools} if tools else {}))

    lm_task.fewshot_context = context


def add_truncated(
    metrics: dict[str, Any], log: list[dict[str, Any]], truncated: list[list[bool]], settings: Evaluate
) -> None:
    """Add the share of answers that were cut at the token limit to a task's metrics and to the log of each question.

    Nothing is added where questions have no drawn answer (likelihoods).

    Args:
        truncated: whether each answer was, question by question.
    """
    if not truncated or not all(truncated):
        return
    shares = [sum(of_question) / len(of_question) for of_question in truncated]
    metrics[TRUNCATED] = statistics.mean_cell(shares, confidence=settings.confidence)
    for row, share in zip(log, shares, strict=True):
        row[TRUNCATED] = share


def _check_mode(task: Task, by_name: dict[str, Any], chat: bool) -> None:
    if not chat and (task.system or task.prefill):
        raise RecipeError(
            f"evaluate.tasks.{task.name}",
            "`system` and `prefill` go through the chat template, and the model has none",
            "Give model.chat_template.",
        )
    offering = [
        name for name, lm_task in by_name.items() if "tools" in (getattr(lm_task.eval_docs, "column_names", None) or ())
    ]
    if not chat and offering:
        raise RecipeError(
            f"evaluate.tasks.{task.name}",
            f"{offering[0]} offers tools through the chat template, and this model is asked without one",
            "Give model.chat_template, or ask for calls in text: bfcl_prompt.",
        )
    own = [name for name, lm_task in by_name.items() if getattr(lm_task.config, "gen_prefix", None)]
    if task.prefill and own:
        raise RecipeError(
            f"evaluate.tasks.{task.name}.prefill",
            f"{own[0]} has a `gen_prefix` of its own, which begins its answers",
            "Leave `prefill` out.",
        )


def _sampled_metrics(samples: list[dict[str, Any]], tokenizer: Any, settings: Evaluate) -> dict[str, Any]:
    answers = [filtered_answers(s) for s in samples]
    lengths = [[float(len(tokenizer(a, add_special_tokens=False)["input_ids"])) for a in texts] for texts in answers]
    cells = statistics.summarise(
        [s["scores"] for s in samples],
        [[" ".join(a.split()) for a in texts] for texts in answers],
        lengths,
        confidence=settings.confidence,
    )
    return cells | _parts(samples, settings.confidence)


def _parts(samples: list[dict[str, Any]], confidence: float) -> dict[str, Any]:
    """pass@1 of each part of a benchmark whose questions say which they belong to, such as levels of difficulty."""
    scores: dict[str, list[float]] = {}
    for sample in samples:
        doc = sample.get("doc")
        part = doc.get(PART) if isinstance(doc, dict) else None
        if isinstance(part, str):
            scores.setdefault(part, []).append(float(np.mean([score >= 1 for score in sample["scores"]])))
    return {f"{part} pass@1": statistics.mean_cell(each, confidence=confidence) for part, each in scores.items()}


def filtered_answers(sample: dict[str, Any]) -> list[str]:
    """The answers of a logged question as they are scored."""
    responses = sample["filtered_resps"][0]
    return [responses] if isinstance(responses, str) else list(responses)


def _reported_metrics(results: dict[str, Any], n: int, confidence: float) -> dict[str, Any]:
    """The metrics that lm-eval reports for a task without per-answer scores.

    Intervals are normal ones from lm-eval's standard errors; where it gives none, low and high are the value.
    """
    out = {}
    for label, name, value in _metrics_of(results):
        metric, _, kind = name.partition(",")
        error = results.get(f"{metric}_stderr,{kind}")
        half = intervals.quantile(confidence) * error if isinstance(error, int | float) and error == error else 0.0
        out[label] = intervals.body(value, (value - half, value + half), n)
    return out


def _mean_metrics(results: dict[str, Any], samples: list[dict[str, Any]], confidence: float) -> dict[str, Any]:
    """Those of the reported metrics that are means over questions, with the intervals of all means: see `mean_cell`."""
    out: dict[str, Any] = {}
    for label, name, value in _metrics_of(results):
        metric, _, kind = name.partition(",")
        values = [s[metric] for s in samples if metric in s and s.get("filter", "none") in (kind, "none")]
        if values and all(isinstance(v, list) and v for v in values):
            cell = statistics.pooled_cell(values, confidence=confidence)
            out |= {label: cell} if abs(cell["value"] - value) < 1e-6 else {}
            continue
        scores = [float(v) for v in values if isinstance(v, bool | int | float | np.number)]
        if scores and len(scores) == len(values) and abs(np.mean(scores) - value) < 1e-6:
            out[label] = statistics.mean_cell(scores, confidence=confidence)
    return out


def _metrics_of(results: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Label, lm-eval's name (METRIC,FILTER) and value of each metric."""
    for name, value in results.items():
        metric, _, kind = name.partition(",")
        if not metric.endswith("_stderr") and metric != "sample_len" and isinstance(value, int | float):
            yield metric if kind in ("", "none") else f"{metric} ({kind})", name, float(value)


def _log(sample: dict[str, Any]) -> dict[str, Any]:
    fields = (
        "doc_id",
        "doc",
        "target",
        "resps",
        "filtered_resps",
        "exact_match",
        "scores",
        "acc",
        "prompt_hash",
        "prompt_level_strict_acc",
    )
    row = {k: sample[k] for k in fields if k in sample}
    if isinstance(row.get("doc"), dict):
        row["doc"] = {name: _in_words(value) for name, value in row["doc"].items() if name not in UNLOGGED}
    return row


def _in_words(value: Any) -> Any:
    """A column of a question for a log: marks in the place of images, at any depth."""
    if hasattr(value, "getbands"):  # Pillow's, which most questions never load
        from pipelines.data import images

        return images.IMAGES.add(images.upright(value))
    if isinstance(value, dict):
        return {name: _in_words(each) for name, each in value.items()}
    return [_in_words(each) for each in value] if isinstance(value, list) else value
