"""Descriptions that MLflow shows at the top of its pages, as Markdown: of a pipeline's run, and of a version of its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evaluation.samples import TRUNCATED
from tasks.tracking import record
from tasks.tracking.alarms import sentence
from tasks.tracking.names import clean
from tasks.tracking.record import headline

MOST = 7900
"""Characters of a description; MLflow takes 8,000 in a tag of some stores."""
ERROR = 1500


def opened(origin: dict[str, str]) -> str:
    """The description of a run that works: where it is in Prefect; empty where no page is known.

    >>> opened({"whetstone.trigger": "schedule", "whetstone.prefect.url": "http://h/x", "whetstone.prefect.deployment": "a/b"})
    'Started by schedule: [a/b in Prefect](http://h/x)'
    """
    address = origin.get(record.FLOW_RUN_URL)
    if not address:
        return ""
    return f"Started by {origin.get(record.TRIGGER, 'hand')}: [{origin.get(record.DEPLOYMENT, 'flow run')} in Prefect]({address})"


def note(
    summary: dict[str, Any],
    run_link: Callable[[str], str],
    answer_links: dict[str, str],
    origin: dict[str, str] | None = None,
    file_link: Callable[[str, str], str] = lambda run, file: "",
    curves: str = "",
) -> str:
    """The description at the top of the pipeline's page: what failed, scores as a table, gains, and links to the stages' runs.

    Args:
        summary: of the run.
        run_link: run id → address of its page.
        answer_links: "sft → rlvr" → address of the page that puts the answers of both side by side.
        origin: tags that say what started the run.
        file_link: run id and file → address of the file in MLflow.
        curves: address of the learning curves of the experiment's runs.
    """
    lines = [*_failure(summary.get("failed"), run_link, file_link), *_scores(summary["evaluation"])]
    for task, steps in summary["differences"].items():
        for step, d in steps.items():
            lines.append(f"- {task}: {step} **{d['value']:+.3f}** [{d['low']:+.3f}, {d['high']:+.3f}], n = {d['n']}")
    lines += [f"- {stage}: {about['achieved']}" for stage, about in summary["stages"].items() if about.get("achieved")]
    for stage, about in summary["stages"].items():
        lines += [f"- **alarm** in {stage}, {sentence(alarm)}" for alarm in about.get("alarms", [])[:10]]
    gate = summary.get("gate")
    lines += [f"- **gate**: {record.verdict(gate)}: {'; '.join(gate['why'])}"] if gate else []
    links = [
        f"[{stage}]({run_link(about['run_id'])}) {about['status']}"
        if about.get("run_id")
        else f"{stage} {about['status']}"
        for stage, about in summary["stages"].items()
    ]
    lines += ["", "Stages: " + ", ".join(links)] if links else []
    if answer_links:
        lines.append("Answers side by side: " + ", ".join(f"[{step}]({url})" for step, url in answer_links.items()))
    if curves and links:
        lines.append(f"Learning curves over runs: [a line for each arm, averaged over seeds]({curves})")
    return "\n".join([*lines, *(["", opened(origin or {})] if opened(origin or {}) else [])]).strip()


def _failure(
    failed: dict[str, Any] | None, run_link: Callable[[str], str], file_link: Callable[[str, str], str]
) -> list[str]:
    """What has ended a run that failed: the stage, its error, links to its run and log, and the last lines of the log."""
    if not failed:
        return []
    stage, run = failed.get("stage"), failed.get("run_id")
    lines = [f"**{stage or 'The run'} failed**: {' '.join(str(failed['error']).split())[:ERROR]}", ""]
    if run:
        log = file_link(run, record.STAGE_LOG)
        lines += [f"[The run of {stage}]({run_link(run)})" + (f", [its log]({log})" if log else ""), ""]
    if failed.get("log"):
        lines += ["```", *(line[:500].replace("```", "` ` `") for line in failed["log"]), "```", ""]
    return lines


def _scores(evaluation: dict[str, Any]) -> list[str]:
    """The headline score of each benchmark for each checkpoint, the last first, as a table."""
    checkpoints = list(evaluation)
    tasks = headline(evaluation[checkpoints[-1]]) if checkpoints else []
    if not tasks:
        return []
    lines = ["| checkpoint | " + " | ".join(f"{t} {m}" for t, m in tasks) + " |", "|" + "---|" * (len(tasks) + 1)]
    for checkpoint in reversed(checkpoints):
        scored = evaluation[checkpoint]
        cells = [_cell(scored.get(t, {}).get(m)) + _cut(scored.get(t, {})) for t, m in tasks]
        lines.append(f"| {checkpoint} | {' | '.join(cells)} |")
    return [*lines, ""]


def version(
    summary: dict[str, Any], name: str, datasets: list[dict[str, Any]], run_link: str
) -> tuple[str, dict[str, str]]:
    """The description of a version of a registered model, and its tags: its scores with intervals, and its data.

    Args:
        summary: of the pipeline's run.
        name: the run's, and so what was set in it.
        datasets: what the run has read, as `client.dataset_inputs` takes them.
        run_link: address of the run's page.
    """
    evaluation = summary["evaluation"]
    checkpoint = next(reversed(evaluation), None)
    scored = evaluation[checkpoint] if checkpoint else {}
    data = [f"{d['name']} ({d['digest'][:12]})" for d in datasets if d["context"] == "training"]
    lines = [f"The model of {checkpoint or 'the last stage'} of [{name}]({run_link}).", "", *_scores(evaluation)]
    lines += [f"- {task}: {step} {d['value']:+.3f} [{d['low']:+.3f}, {d['high']:+.3f}], n = {d['n']}"
              for task, steps in summary["differences"].items() for step, d in steps.items()]  # fmt: skip
    lines += ["", f"Data: {', '.join(data)}"] if data else []
    tags = {clean(f"whetstone.score/{task}/{metric}"): _cell(scored[task][metric]) for task, metric in headline(scored)}
    return "\n".join(lines).strip()[:MOST], tags | ({"whetstone.data": ", ".join(data)} if data else {})


def _cut(metrics: dict[str, Any]) -> str:
    """How many of a task's answers were cut at the token limit; empty where it is not known."""
    share = metrics.get(TRUNCATED)
    return "" if share is None else f", {100 * share['value']:.1f} % cut"


def _cell(cell: dict[str, Any] | None) -> str:
    return "–" if cell is None else f"{cell['value']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"
