"""`whetstone new`: a recipe of one's own, copied from one that comes with the project."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("file", type=Path, help="the new file, such as my.yaml; none is overwritten")
    parser.add_argument(
        "--from", dest="source", required=True, metavar="NAME", help="a name that `whetstone recipes` lists"
    )


def command(arguments: argparse.Namespace) -> int:
    """Copy it, and say what to do next."""
    from pipelines.recipe import shipped

    shipped.copy(arguments.source, arguments.file)
    print(f"wrote {arguments.file}; next: whetstone plan {arguments.file}")
    return 0
