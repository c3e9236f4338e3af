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
    parser.add_argument(
        "--superseded",
        action="store_true",
        help="also registered models whose versions have no alias (candidate, champion, ...) and were never champion",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="only say what would be deleted, which is the default")
    mode.add_argument("--yes", action="store_true", help="delete; without it, only say what would be deleted")
    parser.add_argument("--json", action="store_true")


def command(arguments: argparse.Namespace) -> int:
    """Say what goes, and delete it where `--yes` says so.

    Raises:
        UserError: a run is under way, or the model registry does not answer.
    """
    from tasks import cleaning
    from tasks.promotion.promote import opened_registry

    with opened_registry() as registry:
        planned = cleaning.plan(arguments.older_than, registry.registered(in_use=arguments.superseded))

    def say(each: Removable) -> None:
        if not arguments.json:
            print(f"{'deleting' if arguments.yes else 'would delete'} {_line(each)}", flush=True)

    if arguments.yes:
        cleaning.remove(planned, say)
    else:
        for each in planned.folders:
            say(each)
    if arguments.json:
        print(json.dumps(_body(planned, arguments.yes), indent=1))
    else:
        _sums(planned, arguments.yes)
    return 0


def _line(each: Removable) -> str:
    """A folder, its size, when it was last used, and what its loss costs."""
    if each.path.parent.name == ".work":
        lost = "interrupted, its commits are lost"
    else:
        lost = "in MLflow, fetched when it is needed" if each.stored else "computed again when it is needed"
    day = time.strftime("%Y-%m-%d", time.localtime(each.used))
    return f"{each.path.name}  {each.size / 1e6:>9.1f} MB  used {day}  {lost}"


def _sums(planned: Cleaning, deleted: bool) -> None:
    """What goes together, what stays and why."""
    count = len(planned.folders)
    print(f"{count} folder{'s' if count != 1 else ''}, {planned.size / 1e6:.1f} MB{', deleted' if deleted else ''}")
    for reason, number in planned.kept.items():
        print(f"kept: {number}, {reason}")
    if count and not deleted:
        print("nothing was deleted; --yes does it")


def _body(planned: Cleaning, deleted: bool) -> dict[str, object]:
    folders = [
        {"path": str(each.path), "bytes": each.size, "used": each.used, "in_mlflow": each.stored}
        for each in planned.folders
    ]
    return {"deleted": deleted, "bytes": planned.size, "folders": folders, "kept": planned.kept}
