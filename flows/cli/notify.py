"""`whetstone notify`: send a test message to whom a recipe names."""

from __future__ import annotations

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("recipe", help="a YAML file with a section notify")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field")


def command(arguments: argparse.Namespace) -> int:
    """Send it on every channel and say what came of it: exit code 1 where one did not take it."""
    from pipelines.base.errors import UserError
    from pipelines.recipe.read import read_recipe
    from tasks import notices

    recipe = read_recipe(arguments.recipe, arguments.set)
    if recipe.notify is None:
        raise UserError(
            "notify", "this recipe has no such section", "Add one: notify: {webhook_env: NAME_OF_A_VARIABLE}."
        )
    message = notices.Message("test", recipe.name, ("Messages of this recipe arrive here.",))
    failed = 0
    for channel, fault in notices.now(recipe.notify, message):
        print(f"{channel}: {fault or 'sent'}", flush=True)
        failed += fault is not None
    return int(failed > 0)
