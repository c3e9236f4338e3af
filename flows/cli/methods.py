"""`whetstone methods`: the catalogue as a table or as JSON, the page of one method or preset, or the laws tried on a plug-in."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("name", nargs="?")
    parser.add_argument("--slot", help="only this slot")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--check", metavar="PLUGIN", help="try the laws on a .py file, a module or an installed plug-in"
    )
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="METHOD.SETTING=VALUE",
        help="with --check: a setting that has no default",
    )  # fmt: skip
    parser.add_argument("--without", action="append", default=[], metavar="LAW", help="with --check: leave a law out")


def command(arguments: argparse.Namespace) -> int:
    """Print the table, the page of the preset and of every method with the name, or what came of the laws."""
    if arguments.check is not None:
        from flows.cli.check_methods import check

        return check(arguments.check, settings=arguments.settings, without=arguments.without, as_json=arguments.json)
    from flows.cli import catalogue

    methods = catalogue.entries(arguments.slot)
    if arguments.name is not None:
        named = catalogue.named(arguments.name, methods, arguments.slot)
        if arguments.json:
            print(json.dumps(named, indent=1))
            return 0
        for about in named:
            print(
                catalogue.preset_page(about)
                if about["slot"] == "presets"
                else catalogue.page(about, f"{about['slot']}: ")
            )
        return 0
    if arguments.json:
        print(json.dumps(methods, indent=1))
    else:
        _table(methods)
    return 0


def _table(methods: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from pipelines.recipe.read import preset_names

    console = Console() if sys.stdout.isatty() else Console(width=160)
    table = Table(box=None, pad_edge=False)
    for column in ("slot", "name", "paper", "checked", "reads"):
        table.add_column(column)
    for method in methods:
        table.add_row(method["slot"], method["name"], method["paper"], method["checked"], ", ".join(method["needs"]))
    console.print(table)
    presets = preset_names()
    print(
        f"\n{len(methods)} methods, {len(presets)} presets: {', '.join(presets)}.\n`whetstone methods NAME` shows one."
    )
