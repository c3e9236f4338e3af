"""`whetstone import`: a recipe made of another trainer's configuration."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flows.cli.arguments import integer
from flows.cli.output import CHANGE, DONE

if TYPE_CHECKING:
    from pipelines.base.errors import Problem
    from tasks.importing.read import Imported


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "file",
        type=Path,
        help="YAML of TRL, open-r1, verl or axolotl; a .sh that starts one; a .py that uses TRL; none is executed",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="OVERRIDE",
        help="what was given on the command line after it: field=value; after a --, also --field value",
    )  # fmt: skip
    parser.add_argument(
        "--to",
        type=Path,
        metavar="FILE",
        help="the new recipe, such as my.yaml; none is overwritten; default: print it",
    )
    parser.add_argument(
        "--format", choices=["trl", "open-r1", "verl", "axolotl"], help="whose it is; default: recognised"
    )
    parser.add_argument("--method", choices=["grpo", "sft", "dpo"], help="of TRL and open-r1; default: recognised")
    parser.add_argument("--processes", type=integer(1), metavar="N", help="processes that it ran with, of all machines")
    parser.add_argument(
        "--rows",
        type=integer(1),
        metavar="N",
        help="rows of the data, for steps of an RL run whose length is in epochs",
    )
    parser.add_argument(
        "--row-tokens", type=integer(1), metavar="N", help="mean tokens of a row, for SFT without packing"
    )
    parser.add_argument("--json", action="store_true", help="what was mapped, assumed and left out as JSON")


def command(arguments: argparse.Namespace) -> int:
    """Read it, write the recipe, and list what has no counterpart."""
    from pipelines.recipe import shipped
    from tasks.importing import read

    options = read.Options(
        arguments.format, arguments.method, arguments.processes, arguments.rows, arguments.row_tokens
    )
    result = read.imported(arguments.file, arguments.overrides, options)
    if arguments.to is not None:
        shipped.create(arguments.to, result.text)
    problems = _problems(result)
    if arguments.json:
        record = {"file": str(arguments.to) if arguments.to else None, **result.draft.record(), "recipe": result.text}
        print(json.dumps(record | {"problems": [problem.record() for problem in problems]}, indent=1))
    elif arguments.to is None:
        print(result.text, end="")
    else:
        print(f"wrote {arguments.to}: {len(result.draft.mapped)} fields of {result.draft.config.trainer} read")
        print("\n".join([*result.draft.lines(), f"next: whetstone plan {arguments.to}"]))
    sys.stdout.flush()
    for problem in problems if not arguments.json else ():
        print(f"whetstone: {problem}", file=sys.stderr)
    return CHANGE if problems else DONE


def _problems(result: Imported) -> list[Problem]:
    """What `whetstone plan` would refuse in the recipe, in their words: a folder that is not here, a setting out of bounds."""
    from pipelines.base.errors import UserError
    from pipelines.recipe.check import check
    from tasks.importing import read

    try:
        check(result.recipe)
    except UserError as error:
        return read.in_their_words(error, result.draft).problems
    return []
