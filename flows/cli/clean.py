"""`whetstone clean`: delete stages that nobody has used for some time, and from which nothing registered was made."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from flows.cli.arguments import positive

if TYPE_CHECKING:
    from tasks.cleaning import Cleaning, Removable


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--older-than", type=positive, default=30.0, metavar="DAYS", help="not used for so many days (30)"
    )
    parser.add_argument("--yes", action="store_true", help="delete; without it, only say what would be deleted")
    parser.add_argument("--json", action="store_true")


def command(arguments: argparse.Namespace) -> int:
    """Say what goes, and delete it where `--yes` says so.

    Raises:
        UserError: a run is under way, or the model registry does not answer.
    """
    from tasks import cleaning, environment
    from tasks.tracking import registry
    from tasks.tracking.time_budget import TrackerError

    environment.prepare()
    environment.check_reachable()
    try:
        registered = registry.registered()
    except TrackerError as error:
        raise environment.Unreachable(f"MLflow's model registry does not say what is registered: {error}") from None
    planned = cleaning.plan(arguments.older_than, registered)
    if arguments.json:
        if arguments.yes:
            cleaning.remove(planned)
        print(json.dumps(_body(planned, arguments.yes), indent=1))
        return 0
    verb = "deleting" if arguments.yes else "would delete"
    for each in [] if arguments.yes else [*planned.artifacts, *planned.interrupted]:
        print(f"{verb} {_line(each)}")
    if arguments.yes:
        cleaning.remove(planned, lambda each: print(f"{verb} {_line(each)}", flush=True))
    _sums(planned, arguments.yes)
    return 0


def _line(each: Removable) -> str:
    """A folder, its size, when it was last used, and what its loss costs."""
    kind = (
        "interrupted, its commits are lost" if each.path.parent.name == ".work" else "computed again when it is needed"
    )
    lost = "in MLflow, fetched when it is needed" if each.stored else kind
    day = time.strftime("%Y-%m-%d", time.localtime(each.used))
    return f"{each.path.name}  {each.size / 1e6:>9.1f} MB  used {day}  {lost}"


def _sums(planned: Cleaning, deleted: bool) -> None:
    """What goes together, what stays and why."""
    count = len(planned.artifacts) + len(planned.interrupted)
    print(f"{count} folder{'s' if count != 1 else ''}, {planned.size / 1e6:.1f} MB{', deleted' if deleted else ''}")
    for reason, number in planned.kept.items():
        print(f"kept: {number}, {reason}")
    if count and not deleted:
        print("nothing was deleted; --yes does it")


def _body(planned: Cleaning, deleted: bool) -> dict[str, object]:
    folders = [
        {"path": str(each.path), "bytes": each.size, "used": each.used, "in_mlflow": each.stored}
        for each in [*planned.artifacts, *planned.interrupted]
    ]
    return {"deleted": deleted, "bytes": planned.size, "folders": folders, "kept": planned.kept}
