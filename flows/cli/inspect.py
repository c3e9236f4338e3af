"""`whetstone inspect`: what an evaluation's models answered, as logs that inspect_ai's viewer opens."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", help="the id of the run, or its first characters")
    parser.add_argument(
        "--to", type=Path, required=True, metavar="FOLDER", help="one JSON file for each model and benchmark"
    )


def command(arguments: argparse.Namespace) -> int:
    """Write the logs of every evaluation of a run, and say how they are looked at.

    Raises:
        UserError: there is no such run, it evaluated nothing, or the folder cannot be written.
    """
    from flows import report_data
    from pipelines.base.errors import UserError
    from pipelines.recipe.stage_kind import SCORES
    from tasks.export import inspect_logs

    body = report_data.run_of(arguments.run)
    stages = body["summary"]["stages"]
    evaluations = {name: about for name, about in stages.items() if report_data.kind_of(about).makes == SCORES}
    if not evaluations:
        raise UserError(f"run {body['run_id']} has no evaluation.")
    files: list[Path] = []
    for name, about in evaluations.items():
        folder = arguments.to / name if len(evaluations) > 1 else arguments.to
        files += inspect_logs.write(
            Path(about["artifact"]), folder, created=float(body.get("started") or 0),
            about={"run": body["run_id"], "recipe": body.get("name"), "stage": name, "key": about.get("key")},
        )  # fmt: skip
    print(f"{arguments.to}: {len(files)} logs; look at them with: inspect view --log-dir {arguments.to}")
    return 0
