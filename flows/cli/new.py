"""`whetstone new`: a recipe or a benchmark of one's own, which begins as one that comes with the project."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "file", type=Path, help="the new file, such as my.yaml, or the benchmark's folder; none is overwritten"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--from", dest="source", metavar="NAME", help="a recipe: a name that `whetstone recipes` lists")
    what.add_argument(
        "--benchmark", action="store_true", help="a benchmark of three questions, to be replaced by yours"
    )


def command(arguments: argparse.Namespace) -> int:
    """Copy it, and say what to do next."""
    if arguments.benchmark:
        from evaluation import benchmark_files

        benchmark_files.create(arguments.file)
        told = f"evaluate: {{include: {arguments.file.parent}, tasks: [{arguments.file.name}]}}"
        print(
            f"wrote {arguments.file}; next: put your questions into {arguments.file / benchmark_files.ROWS}; in a recipe: {told}"
        )
        return 0
    from pipelines.recipe import shipped

    shipped.copy(arguments.source, arguments.file)
    print(f"wrote {arguments.file}; next: whetstone plan {arguments.file}")
    return 0
