"""A whole recipe as one Prefect flow: its stages in order, or any part of them; branches side by side where asked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tasks import environment, worker
from tasks.tracking import leases, links, mirrors, outbox

environment.prepare()

from prefect import flow  # noqa: E402
from prefect.futures import as_completed, wait  # noqa: E402
from prefect.states import Failed  # noqa: E402

from flows import origin, page, reports  # noqa: E402
from flows.parameters import Stage  # noqa: E402
from flows.progress import Bar, Closing, Lines  # noqa: E402
from flows.table import gate_lines, markdown  # noqa: E402
from pipelines.recipe.read import Recipe  # noqa: E402
from tasks import prestart as ahead  # noqa: E402
from tasks import process, splits  # noqa: E402
from tasks.pipeline import Pipeline, Prepared, Selection, handed_on, needed_before  # noqa: E402
from tasks.prefect_tasks import stage_task  # noqa: E402
from tasks.preflight import check as preflight  # noqa: E402
from tasks.stages import Show, StageResult, plan  # noqa: E402
from tasks.store.artifacts import Artifact  # noqa: E402


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
    """Run a recipe; stages whose key is known are reused. A run that its gate stops ends in the state Worse or Undecided.

    Args:
        recipe: path of a YAML file; `recipes/NAME.yaml` is the project's own where the working folder has none.
        overrides: `field=value` changes to the recipe, such as `rlvr.advantage=rloo`.
        from_stage: run this stage and what is made from it; a kind, or the name of a stage in a recipe that names them.
        until: run this stage and what it is made from.
        only: run these stages only.
        fresh: run the chosen stages even where their artifacts exist.
        summary: write the returned summary to this JSON file.
    """
    worker.enter()
    handed = handed_on.get()
    with page.refused(recipe):
        preflight.summary_file(summary)
        environment.check_reachable()
        selection = Selection(from_stage, until, tuple(only or ()))
        prepared = handed or Prepared.of(recipe, overrides, selection, fresh=fresh)
        pipeline = _begin(prepared, recipe, overrides)
    read, chosen = prepared.recipe, prepared.chosen
    done, address = dict(pipeline.before), links.served_run(pipeline.experiment_id, pipeline.parent)
    try:
        leases.close_abandoned()
        leases.close_unresponsive()
        show = progress()
        if deployed():
            show = page.Bars(show)
            if address:
                page.link(address)
        if read.concurrent_stages == 1:
            for number, stage in enumerate(chosen, 1):
                later = chosen[number:]
                result = _task(read, stage)(stage, read, done, pipeline.parent, fresh, show, later, pipeline.name)
                _finished(pipeline, chosen, done, result)
        else:
            _side_by_side(read, chosen, pipeline, done, fresh, show)
        if read.gate is not None:
            from tasks.promotion import nightly

            nightly.ask(pipeline)
    except BaseException as error:
        ahead.leave()
        body = pipeline.close("FAILED" if isinstance(error, Exception) else "KILLED", error)
        if isinstance(error, Exception):
            _notify(read, body)
            page.told(body, address)
            reports.leave(pipeline)
        raise
    ahead.leave()
    # a sweep closes several at once
    say = Closing() if handed or deployed() else lambda what: None
    body = pipeline.close(say=say)
    _notify(read, body)
    say("making the report")
    reports.leave(pipeline)
    say("")
    if summary:
        Path(summary).write_text(json.dumps(body, indent=1))
    page.told(body, address)
    if body["evaluation"]:
        page.scores(markdown(body), f"{read.name}: benchmark scores")
    gate = body.get("gate") or {}
    if gate.get("failed"):  # a state of its own, which automations can wait for; its result is the body all the same
        name = str(gate["verdict"]).capitalize()
        return Failed(name=name, message="; ".join(gate_lines(body)), data=body)  # type: ignore[return-value]
    return body


def _begin(prepared: Prepared, source: str, overrides: list[str] | None) -> Pipeline:
    """Check the recipe and open its run in MLflow. What fails here under a worker is told to people; elsewhere they are there."""
    read, chosen = prepared.recipe, prepared.chosen
    try:
        looked = preflight.passed(read, chosen)  # by a sweep in this process, or by the command line
        if not looked:
            preflight.require(read, prepared.will_run)
        if not looked or handed_on.get():
            page.planned(prepared)
        done = needed_before(read, chosen, plan(read), prepared.of_run) if chosen != read.stage_names() else {}
        outbox.flush_all(read.tracking.timeout_s)
        mirrors.take_up()
        pipeline = Pipeline.open(read, source=source, overrides=overrides, origin=origin.tags())
    except Exception as error:
        if deployed():
            _notify(read, {"recipe": read.name, "failed": {"error": str(error)}})
        raise
    pipeline.before = dict(done)
    return pipeline


def _notify(recipe: Recipe, body: dict[str, Any]) -> None:
    """Tell people of a run that failed or that its gate stopped, where the recipe says whom; wait for what is being sent."""
    if recipe.notify is not None:
        from tasks import notices

        notices.of_run(recipe.notify, body, gate_lines(body))
        notices.finish()


def _task(recipe: Recipe, stage: str) -> Any:
    """The task of a stage, under its name, with its kind as a tag."""
    return stage_task.with_options(task_run_name=stage, tags={recipe.graph[stage].kind})


def _finished(pipeline: Pipeline, chosen: list[str], done: dict[str, Artifact], result: StageResult) -> None:
    """Take note of a stage's artifact, and see that those which read it can."""
    done[result.stage] = result.artifact
    pipeline.results[result.stage] = result
    page.ended(result)
    splits.check_filled(pipeline.recipe, chosen, result.stage, result.artifact)


def _side_by_side(
    recipe: Recipe, chosen: list[str], pipeline: Pipeline, done: dict[str, Artifact], fresh: bool, show: Show
) -> None:
    """Run every stage as soon as all that it reads is there, at most `concurrent_stages` at a time.

    After one has failed no other is started; those that run come to their end, so that they need not be run again.
    """
    if len(chosen) > 1:
        show = Lines() if isinstance(show, Bar) else show  # one bar cannot show two stages
    waiting = list(chosen)
    running: dict[Any, str] = {}
    try:
        while waiting or running:
            ready = [s for s in waiting if all(source in done for source in recipe.node(s).inputs.values())]
            for stage in ready[: recipe.concurrent_stages - len(running)]:
                arguments = (stage, recipe, dict(done), pipeline.parent, fresh, show, (), pipeline.name)
                running[_task(recipe, stage).submit(*arguments)] = stage
                waiting.remove(stage)
            ended = [future for future in running if future.state.is_final()]
            for future in ended or [next(as_completed(list(running)))]:
                running.pop(future)
                _finished(pipeline, chosen, done, future.result())
    except BaseException as error:
        if not isinstance(error, Exception):
            process.stop_all.set()
        wait(list(running))
        raise
    pipeline.results = {name: pipeline.results[name] for name in chosen}  # in the recipe's order, not as they ended


def deployed() -> bool:
    """Whether a worker runs this flow, so that its page in Prefect is where people look."""
    return worker.FLOW_RUN in os.environ


def progress() -> Show:
    """A bar on a terminal, a line a minute in a log."""
    return Bar() if sys.stderr.isatty() else Lines()
