"""What the page of a flow run shows in Prefect: its name, what is done and why, a bar for each stage, the way to MLflow, the scores."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from prefect import runtime
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.context import FlowRunContext
from prefect.logging.handlers import APILogHandler

from flows import table
from flows.table import differences, gate_lines, markdown, outcomes
from pipelines.base import names
from pipelines.base.secrets import redact
from tasks.pipeline import Prepared
from tasks.stages import Show, StageResult
from tasks.tracking import links

log = logging.getLogger("whetstone.page")
EVERY_S = 5.0


def run_name(stage: str | None = None) -> str:
    """Of the flow run at hand: its stage if it has only one, its recipe, what its parameters change, which stages it takes."""
    return name_of(runtime.flow_run.parameters, stage)


def name_of(parameters: dict[str, Any], stage: str | None = None) -> str:
    """A run's name from its parameters.

    >>> name_of({"recipe": "recipes/quickstart.yaml", "overrides": ["rlvr.advantage=rloo", "seed=3"], "from_stage": "rlvr"})
    'quickstart · seed 3 · rlvr.advantage rloo · from rlvr'
    """
    recipe = Path(str(parameters.get("recipe", "?"))).stem
    changed = names.named(recipe, [], [str(text) for text in parameters.get("overrides") or []])
    parts = [*([stage] if stage else []), *([] if changed.startswith(recipe) else [recipe]), changed]
    for option, word in (("from_stage", "from"), ("until", "until")):
        parts += [f"{word} {parameters[option]}"] if parameters.get(option) else []
    parts += [f"only {' '.join(parameters['only'])}"] if parameters.get("only") else []
    parts += ["fresh"] if parameters.get("fresh") else []
    return names.DOT.join(parts)[:200]


class _OwnLog(APILogHandler):
    """Sends to the log of the flow run or task run at hand; nothing outside one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send it."""
        if FlowRunContext.get() is not None:
            super().emit(record)


@cache
def _log() -> logging.Logger:
    """The logger of what only Prefect shows: a terminal has its own words for it."""
    logger = logging.getLogger("whetstone.page.log")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(_OwnLog())
    return logger


def say(text: str) -> None:
    """Put a line into the log of the flow run."""
    _log().info(redact(text))


def planned(prepared: Prepared) -> None:
    """Say what will be done with each stage, and why."""
    for each in prepared.planned if FlowRunContext.get() is not None else []:
        say(f"{each.stage}: {'will be reused' if each.action == 'reuse' else 'will run'}: {each.why}")


def ended(result: StageResult) -> None:
    """Say what became of a stage."""
    if FlowRunContext.get() is None:
        return
    stage, about = result.stage, result.summary()
    say(
        f"{stage}: {about['status']}{' in ' if about['status'] == 'ran' else ''}{took(about)}"
        + "".join(f"; {line}" for line in outcomes(about))
    )


def took(about: dict[str, Any]) -> str:
    """The time of a stage that ran, by its entry in the summary; empty for one that was reused.

    >>> took({"status": "ran", "seconds": 221.3, "waited": 201})
    '221 s (201 s without a machine)'
    """
    if about["status"] != "ran":
        return ""
    return f"{about['seconds']:.0f} s" + (f" ({about['waited']} s without a machine)" if about.get("waited") else "")


def told(body: dict[str, Any], address: str | None) -> None:
    """Put the run's summary on the page, and its scores into the log.

    Args:
        body: the summary.
        address: of the run in MLflow, where it has a page.
    """
    if FlowRunContext.get() is None:
        return
    for line in [*table.scores(body), *differences(body), *gate_lines(body)]:
        say(line)
    if address:
        say(f"in MLflow: {address}")
    try:
        create_markdown_artifact(story(body, address), key="run", description=headline(body))
    except httpx.HTTPError as error:
        log.warning("Prefect did not take the summary of the run: %s", error)


@contextmanager
def refused(recipe: str) -> Iterator[None]:
    """Put what keeps a run from beginning on its page: without this a reader has Prefect's traceback alone.

    Args:
        recipe: its path, or a name.
    """
    try:
        yield
    except Exception as error:
        told({"recipe": Path(recipe).stem, "stages": {}, "evaluation": {}, "failed": {"error": str(error)}}, None)
        raise


def headline(body: dict[str, Any]) -> str:
    """A run in one line.

    >>> headline({"recipe": "toy", "stages": {"sft": {"status": "ran"}, "curate": {"status": "reused"}}})
    'toy: ran sft; reused curate'
    """
    stages = body["stages"]
    parts = [f"{status} {', '.join(n for n in stages if stages[n]['status'] == status)}" for status in ("ran", "reused")
             if any(about["status"] == status for about in stages.values())]  # fmt: skip
    failed = body.get("failed")
    parts += [f"{failed.get('stage') or 'the run'} failed"] if failed else []
    return f"{body['recipe']}: {'; '.join(parts) or 'nothing was done'}"[:500]


def story(body: dict[str, Any], address: str | None) -> str:
    """The summary of a run as Markdown: what failed, the way to MLflow, the stages with reasons and links, the scores."""
    failed = body.get("failed")
    lines = [f"**{headline(body)}**", ""]
    if failed:
        lines += [redact(str(failed["error"])), "", "```", *failed.get("log", []), "```", ""]
    lines += [f"[This run in MLflow]({address})", ""] if address else []
    lines += ["| stage | what | why | time | |", "|---|---|---|---|---|"] if body["stages"] else []
    for name, about in body["stages"].items():
        ran = about["status"] == "ran"
        page = links.run(body["experiment_id"], about["run_id"]) if address and ran and about.get("run_id") else None
        cells = [name, about["status"], about["why"].replace("|", "/"), took(about) or "–"]
        lines.append("| " + " | ".join([*cells, f"[MLflow]({page})" if page else ""]) + " |")
    return "\n".join([*lines, "", markdown(body)] if body["evaluation"] else lines)


def link(address: str) -> None:
    """Put the way to the run in MLflow on the page."""
    try:
        create_link_artifact(address, "this run in MLflow", key="mlflow", description="The pipeline's run in MLflow")
    except httpx.HTTPError as error:
        log.warning("Prefect did not take the link to MLflow: %s", error)


def scores(table: str, description: str) -> None:
    """Put the table of scores, as Markdown, on the page."""
    try:
        create_markdown_artifact(table, key="benchmarks", description=description)
    except httpx.HTTPError as error:
        log.warning("Prefect did not take the table of scores: %s", error)


class Bars:
    """A progress artifact for each stage, sent from a thread of its own: training never waits for Prefect.

    Args:
        beside: shown beside it, such as lines in the log.
    """

    def __init__(self, beside: Show) -> None:
        self.beside = beside
        self.bars: dict[str, _Bar] = {}

    def __call__(self, stage: str, body: dict[str, Any] | None) -> None:
        """Note the progress of a stage; None ends it."""
        self.beside(stage, body)
        if body is None:
            bar = self.bars.pop(stage, None)
            if bar is not None:
                bar.ended.set()
            return
        if stage not in self.bars:
            self.bars[stage] = _Bar(stage)
        self.bars[stage].latest = body


class _Bar:
    """The artifact of one stage, and the thread that keeps it true."""

    def __init__(self, stage: str) -> None:
        self.stage, self.ended = stage, threading.Event()
        self.latest: dict[str, Any] = {}
        self.id: Any = None
        context = contextvars.copy_context()  # the artifact belongs to this task's run
        threading.Thread(target=context.run, args=(self._loop,), daemon=True, name="progress").start()

    def _loop(self) -> None:
        shown, last = -1.0, False
        while not last:
            last = self.ended.wait(EVERY_S)
            latest = self.latest
            percent = 100.0 * latest["done"] / max(1, latest["total"]) if "done" in latest else 0.0
            outcome = latest.get("ending") or latest.get("achieved")
            if percent == shown and not (last and outcome):
                continue
            try:
                self._send(percent, outcome or latest.get("what") or self.stage)
                shown = percent
            except httpx.HTTPError as error:
                log.info("Prefect did not take the progress of %s: %s", self.stage, error)

    def _send(self, percent: float, words: str) -> None:
        if self.id is None:
            self.id = create_progress_artifact(percent, key=f"progress-{names.slug(self.stage)}", description=words)
        else:
            update_progress_artifact(self.id, percent, words)
