"""The report of a run as one HTML file, which every run leaves among its files in MLflow when it ends."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

from pipelines.base.secrets import redact
from pipelines.recipe.settings import Tracking
from tasks.pipeline import Pipeline
from tasks.store import index
from tasks.tracking import outbox
from tasks.tracking.time_budget import TimeBudget

log = logging.getLogger("whetstone.report")
STORED = "report.html"
"""Its name among the files of a run in MLflow."""
SAMPLED_STEPS = 8
"""Steps whose rollouts are shown."""
MOST_BYTES = 64_000_000
"""Answers and rollouts of a run, as they are stored; with more, its report is not made by itself at its end."""
PATIENCE_S = 5.0
"""How long the end of a run waits for MLflow to take its report, which has been written to the outbox by then."""
_one_at_a_time = threading.Lock()
"""Matplotlib's settings belong to the process, and a sweep ends runs in several threads."""


def page_of(run: dict[str, Any], shown: Tracking | None = None) -> str:
    """The page of a run.

    Args:
        run: an entry of the index, its stages' artifacts being here (`report_data.run_of`).
        shown: answers or rollouts of which MLflow is to show none are left out; None: nothing is.
    """
    from flows import report_data, report_page
    from tasks.tracking import rollouts

    stages = run["summary"]["stages"]
    pairs = report_data.last_flips(stages) if shown is None or shown.answers else []
    wanted = stages.items() if shown is None or shown.rollouts else ()
    rewarded = [name for name, about in wanted if report_data.kind_of(about).rewards]
    last = rewarded[-1] if rewarded else ""
    rows = rollouts.read(Path(stages[last]["artifact"])) if last else []
    steps = rollouts.spread(sorted({row["step"] for row in rows}), SAMPLED_STEPS)
    sampled = [row for row in rows if row["step"] in steps]
    return report_page.page(run, pairs, report_data.followed(rows), sampled, last)


def leave(pipeline: Pipeline) -> None:
    """Put the report of a run that has been closed among its files in MLflow, or into the outbox where MLflow is away.

    What goes wrong is one line of the log: the run has ended, and `whetstone report RUN --store` makes the page as well.
    """
    if pipeline.recorded or pipeline.parent is None:
        return
    try:
        settings = pipeline.recipe.tracking
        run = next(each for each in index.runs() if each["run_id"] == pipeline.parent)
        size = _bytes(run["summary"]["stages"], settings)
        if size > MOST_BYTES:
            log.info(
                "answers and rollouts have %d MB, so no report was stored; `whetstone report %s --store` makes it",
                size // 1_000_000, pipeline.parent[:8],
            )  # fmt: skip
            return
        away = outbox.entry_of(pipeline.parent).exists()
        with _one_at_a_time:
            page = page_of(run, settings)
        entry = outbox.add_text(pipeline.parent, STORED, page)
        if not away:
            outbox.flush(entry, TimeBudget(min(PATIENCE_S, settings.timeout_s)), away=logging.INFO)
    except Exception as error:  # whatever a page may be made of, the run has ended well or badly without it
        log.warning("no report was stored (%s: %s)", type(error).__name__, redact(str(error))[:300])


def _bytes(stages: dict[str, dict[str, Any]], shown: Tracking) -> int:
    """Of the answers and rollouts that the page of these stages would read."""
    patterns = [
        *(["samples/*/*.jsonl"] if shown.answers else []),
        *(["report/rollouts.jsonl*"] if shown.rollouts else []),
    ]
    folders = [Path(about["artifact"]) for about in stages.values() if about.get("artifact")]
    return sum(file.stat().st_size for folder in folders for pattern in patterns for file in folder.glob(pattern))
