"""Options of the commands that read a recipe and choose among its stages: `run`, `plan` and `rerun`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.pipeline import Prepared


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options that change fields and choose stages, and `--json`."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field: rlvr.steps=3"
    )
    parser.add_argument("--from", dest="start", metavar="STAGE", help="this stage and all that depend on it")
    parser.add_argument("--until", metavar="STAGE", help="this stage and all that it depends on")
    parser.add_argument("--only", action="append", default=[], metavar="STAGE", help="this stage only (repeatable)")
    parser.add_argument("--fresh", action="store_true", help="run the chosen stages even where nothing changed")
    parser.add_argument("--json", action="store_true", help="for machines: the result, or the error, as JSON")
    parser.set_defaults(of_run=None)


def prepare(arguments: argparse.Namespace, *, fetch: bool = True) -> Prepared:
    """The recipe and the stages that these options choose; `fetch` and errors as for `Prepared.of`."""
    from tasks.pipeline import Prepared, Selection

    chosen = Selection(arguments.start, arguments.until, tuple(arguments.only))
    return Prepared.of(
        arguments.recipe, arguments.set, chosen, fresh=arguments.fresh, fetch=fetch, of_run=arguments.of_run
    )
