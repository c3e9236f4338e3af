"""`whetstone recipes`: the recipes that come with the project."""

from __future__ import annotations

import argparse
import json
import textwrap


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true")


def command(arguments: argparse.Namespace) -> int:
    """Print each with what it says of itself."""
    from pipelines.recipe import shipped

    listed = {name: shipped.header(name) for name in shipped.names()}
    if arguments.json:
        entries = [
            {"name": name, "about": about, "file": str(shipped.FOLDER / f"{name}.yaml")}
            for name, about in listed.items()
        ]
        print(json.dumps(entries, indent=1))
        return 0
    width = max(map(len, listed))
    for name, about in listed.items():
        print(f"{name:<{width}}  {textwrap.shorten(about.partition('. ')[0].rstrip('.'), 110, placeholder=' ...')}")
    print(
        "\n`whetstone new my.yaml --from NAME` copies one; `whetstone run recipes/NAME.yaml` runs it as it is, in any folder."
    )
    return 0
