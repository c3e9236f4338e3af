"""`whetstone schema`: the JSON schema of a recipe, which editors complete and check recipes with."""

from __future__ import annotations

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--plugin", dest="plugins", action="append", default=[], metavar="PLUGIN",
        help="a .py file or a module whose methods it should have too; may be repeated",
    )  # fmt: skip


def command(arguments: argparse.Namespace) -> int:
    """Print it."""
    from pipelines.base import plugins
    from pipelines.recipe import json_schema

    plugins.activate(arguments.plugins)
    print(json_schema.text(), end="")
    return 0
