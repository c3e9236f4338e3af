"""The whole chain as one Prefect flow: curate → SFT → RLVR → evaluate, or any part of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

from tasks import claims, environment, links, outbox, worker

environment.prepare()

from prefect import flow  # noqa: E402

from flows import page  # noqa: E402
from flows.table import markdown  # noqa: E402
from pipelines.recipe.read import read_recipe  # noqa: E402
from tasks import preflight  # noqa: E402
from tasks.pipeline import Pipeline, Selection, needed_before  # noqa: E402
from tasks.prefect_tasks import stage_task  # noqa: E402
from tasks.stages import Show, bring, plan  # noqa: E402

Stage = Literal["curate", "sft", "rlvr", "evaluate"]


@flow(name="post-training", flow_run_name=page.run_name, persist_result=False, validate_parameters=True)
def post_training(
    recipe: str,
    overrides: list[str] | None = None,
    from_stage: Stage | None = None,
    until: Stage | None = None,
    only: list[Stage] | None = None,
    fresh: bool = False,
    summary: str | None = None,
) -> dict[str, Any]:
    """Run a recipe; stages whose key is known are reused.

    Args:
        recipe: path of a YAML file, relative to the project's root where it is not found as given.
        overrides: `field=value` changes to the recipe.
        from_stage: first stage to run.
        until: last stage to run.
        only: run these stages only.
        fresh: run the chosen stages even where their artifacts exist.
        summary: write the returned summary to this JSON file.
    """
    worker.enter()
    preflight.summary_file(summary)
    environment.check_reachable()
    read = read_recipe(find_recipe(recipe), overrides)
    chosen = Selection(from_stage, until, tuple(only or ())).of(read)
    if chosen != read.stages():
        bring(read, chosen)
    if not preflight.passed(read, chosen):  # the command line has looked already, in this process
        planned = plan(read, fresh=fresh, only=chosen)
        preflight.require(read, [p.stage for p in planned if p.stage in chosen and p.action == "run"])
    done = needed_before(read, chosen, plan(read)) if chosen != read.stages() else {}
    outbox.flush_all(read.tracking.timeout_s)
    pipeline = Pipeline.open(read, source=recipe, overrides=overrides)
    pipeline.before = dict(done)
    try:
        claims.close_abandoned()
        claims.close_unresponsive()
        show = progress()
        if deployed():
            show = page.Bars(show)
            if pipeline.parent and pipeline.experiment_id and environment.tracking_uri().startswith("http"):
                page.link(links.run(pipeline.experiment_id, pipeline.parent))
        for stage in chosen:
            result = stage_task.with_options(task_run_name=stage)(stage, read, done, pipeline.parent, fresh, show)
            done[stage] = result.artifact
            pipeline.results[stage] = result
    except BaseException as error:
        pipeline.close("FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    body = pipeline.close()
    if summary:
        Path(summary).write_text(json.dumps(body, indent=1))
    if body["evaluation"]:
        page.scores(markdown(body), f"{read.name}: benchmark scores")
    return body


def deployed() -> bool:
    """Whether a worker runs this flow, so that its page in Prefect is where people look."""
    return worker.FLOW_RUN in os.environ


def find_recipe(path: str) -> Path:
    """The file as given, else below the project's root (a worker may run elsewhere)."""
    candidate = Path(path)
    return candidate if candidate.exists() or candidate.is_absolute() else environment.ROOT / path


def progress() -> Show:
    """A bar on a terminal, a line a minute in a log."""
    from flows.progress import Bar, Lines

    return Bar() if sys.stderr.isatty() else Lines()
