"""What the page of a deployed flow run shows in Prefect: its name, a bar for each stage, the way to MLflow."""

from __future__ import annotations

import contextvars
import logging
import re
import threading
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

from pipelines.base import names
from tasks.stages import Show

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
            percent = 100.0 * self.latest["done"] / max(1, self.latest["total"]) if self.latest else 0.0
            if percent == shown and not (last and self.latest.get("achieved")):
                continue
            try:
                self._send(percent, self.latest.get("achieved") or self.latest.get("what") or self.stage)
                shown = percent
            except httpx.HTTPError as error:
                log.info("Prefect did not take the progress of %s: %s", self.stage, error)

    def _send(self, percent: float, words: str) -> None:
        if self.id is None:
            self.id = create_progress_artifact(percent, key=f"progress-{_slug(self.stage)}", description=words)
        else:
            update_progress_artifact(self.id, percent, words)


def _slug(stage: str) -> str:
    """A stage's name as Prefect takes it in a key.

    >>> _slug("long_context.2")
    'long-context-2'
    """
    return re.sub(r"[^a-z0-9]+", "-", stage.lower()).strip("-")
