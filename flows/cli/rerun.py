"""`whetstone rerun`: a run of MLflow's, or a part of it, once more, with changes. It needs nothing of the folder that made it."""

from __future__ import annotations

import argparse
from pathlib import Path

from flows.cli import run, selection
from pipelines.base.errors import RecipeError, UserError
from pipelines.base.files import write_atomic
from tasks import environment


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", help="the id of the run, or its first characters")
    selection.add(parser)
    run.add_summary(parser)


def command(arguments: argparse.Namespace) -> int:
    """Fetch the recipe of the run from MLflow and run it: the exit code of `run`."""
    from tasks.tracking import lookup

    environment.prepare()
    environment.check_reachable()
    arguments.of_run = lookup.find_run(arguments.run)["run_id"]
    arguments.recipe = recipe_of(arguments.of_run, arguments.set)
    return run.command(arguments)


def recipe_of(run_id: str, overrides: list[str]) -> Path:
    """Write the recipe of a pipeline's run into the project folder; returns the file.

    Args:
        run_id: the whole id.
        overrides: changes that will be made to it.

    Raises:
        UserError: MLflow does not have the recipe.
        RecipeError: a change cannot be made to a recipe that has every field filled in.
    """
    from tasks.tracking import open_runs as tracking_open
    from tasks.tracking.time_budget import TrackerError

    for text in overrides:
        if text.split("=")[0].strip().split(".")[0] == "presets":
            raise RecipeError(
                "presets",
                "the stored recipe has every field filled in, so a preset would change nothing",
                "Change the fields themselves (rlvr.advantage=rloo), or run the recipe's own file.",
            )
    try:
        body = tracking_open.recipe_text(run_id)
    except TrackerError as error:
        raise UserError(f"MLflow does not have the recipe of run {run_id}: {error}") from None
    path = environment.home() / "pipelines" / "recipes" / f"{run_id}.yaml"
    write_atomic(path, body)
    return path
