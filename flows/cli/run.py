"""`whetstone run`: the stages of a recipe whose inputs have changed. Imports are lazy, so that errors come at once."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.cli import output, selection


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("recipe", help="a YAML file, such as recipes/quickstart.yaml")
    selection.add(parser)
    add_summary(parser)


def add_summary(parser: argparse.ArgumentParser) -> None:
    """Add `--summary`, which every command that runs a recipe has."""
    parser.add_argument("--summary", metavar="FILE", help="write the run's summary as JSON")


def command(arguments: argparse.Namespace) -> int:
    """Run what has changed: exit code 0, or 3 where the recipe's gate stops it."""
    from flows import table
    from tasks import environment
    from tasks.environment import folder as project_folder
    from tasks.preflight import check as preflight

    preflight.summary_file(arguments.summary)
    environment.prepare()
    project_folder.check(environment.home())
    began = time.monotonic()
    prepared = selection.prepare(arguments)

    def told() -> None:
        width = max(9, *(len(p.stage) for p in prepared.planned))
        for p in prepared.planned if not arguments.json else []:
            print(f"{p.stage:<{width}} {p.action:<6} {p.why}", flush=True)

    if prepared.will_run:
        environment.check_reachable()
        body = _flow(arguments, prepared, told)
    else:
        told()
        body = _unchanged(prepared, began, arguments)
    if arguments.summary:
        Path(arguments.summary).write_text(json.dumps(body, indent=1))
    code = output.GATE if (body.get("gate") or {}).get("failed") else output.DONE
    if arguments.json:
        print(json.dumps(body, indent=1))
        return code
    print()
    table.show(body)
    _farewell(body, time.monotonic() - began)
    return code


def _unchanged(prepared: Any, began: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the result of a run in which every stage is reused, without starting Prefect or MLflow."""
    from flows import reports
    from tasks.pipeline import Pipeline
    from tasks.stages import StageResult
    from tasks.tracking import leases, mirrors, outbox

    if outbox.waiting():
        outbox.flush_all(prepared.recipe.tracking.timeout_s)
    mirrors.take_up()
    pipeline = Pipeline.unchanged(prepared.recipe, str(arguments.recipe), arguments.set)
    pipeline.began = began
    for p in prepared.planned:
        pipeline.results[p.stage] = StageResult(p.stage, "reused", p.artifact, p.why, 0.0)
    if prepared.recipe.gate is not None:
        from tasks.promotion import nightly

        nightly.ask(pipeline)
    body = pipeline.close()
    reports.leave(pipeline)
    leases.close_abandoned()
    return body


def _flow(arguments: argparse.Namespace, prepared: Any, told: Callable[[], None]) -> dict[str, Any]:
    """Run the flow; what its stages need is looked at while Prefect and MLflow are imported."""
    from flows import embedded
    from tasks import prestart as ahead
    from tasks.pipeline import handed_on
    from tasks.preflight import check as preflight

    recipe, will_run = prepared.recipe, prepared.will_run
    examination: Any = None

    def check() -> None:
        nonlocal examination
        if recipe.concurrent_stages == 1:
            ahead.prepare([recipe.node(name) for name in will_run])
        examination = preflight.PreflightCheck(recipe, will_run)
        if examination.wait_is_short:
            confirm()
        if recipe.concurrent_stages == 1:
            ahead.begin(recipe.node(will_run[0]))

    def confirm() -> None:
        nonlocal examination
        if examination is not None:
            looked, examination = examination, None
            looked.require()
            told()

    reset = handed_on.set(prepared)
    try:
        body: dict[str, Any] = embedded.run_flow(
            "flows.post_training",
            lambda module: module.post_training(
                recipe=str(arguments.recipe),
                overrides=arguments.set,
                from_stage=arguments.start,
                until=arguments.until,
                only=arguments.only or None,
                fresh=arguments.fresh,
                return_state=True,
            ),
            check,
            confirm,
        )
    finally:
        handed_on.reset(reset)
        ahead.leave()
        if examination is not None:
            examination.close()
    return body


def _farewell(body: dict[str, Any], seconds: float) -> None:
    """Say what the command took, and where everything is.

    Args:
        seconds: of wall-clock time, the starts and ends of servers included; `body` has those of the run in MLflow.
    """
    from flows import table
    from tasks.tracking import links

    print(f"\nrun {body['parent_run_id']} took {seconds:.1f} s")
    models = [folder for about in body["stages"].values() if (folder := Path(about["artifact"]) / "model").is_dir()]
    if models:
        print(f"model:   {models[-1]}")
    for line in links.ui_lines(body.get("experiment_id"), body["parent_run_id"]):
        print(line)
    for number, line in enumerate(table.gate_lines(body)):
        print(f"  {line}" if number else line)
