"""`whetstone compare`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="a run (its id or the first characters), a model (stage-key or its folder), or experiment:NAME for all its runs; "
        "the first is what the others are tested against; :base, :sft or :rlvr after a name chooses a checkpoint",
    )
    parser.add_argument(
        "--weights",
        action="store_true",
        help="compare the models' weights too: share changed, spectral shift, rotation",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write one page with charts that opens anywhere, without a network"
    )
    parser.add_argument("--confidence", type=float, default=0.95, help="level of the intervals and tests (0.95)")
    parser.add_argument("--json", action="store_true", help="for machines: the whole comparison as JSON")


def command(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from evaluation.pages import comparison as pages
    from evaluation.pages.page import visible
    from flows.progress import Status
    from pipelines.base.files import write_atomic
    from tasks.lineage import comparing
    from tasks.preflight import check as preflight
    from tasks.tracking import links

    preflight.summary_file(arguments.html, "--html")
    with Status(quiet=arguments.json) as status:
        body = comparing.compare(
            arguments.names, confidence=arguments.confidence, weights=arguments.weights, progress=status
        )
    evaluations = body.pop("evaluations")  # places on this machine, for the page alone
    if arguments.html:
        arms = [arm["name"] for arm in body["arms"]]
        title = " vs ".join(arms[:3]) + (f" and {len(arms) - 3} more" if len(arms) > 3 else "")
        write_atomic(Path(arguments.html), pages.html(body, title, links.known(), evaluations), durable=False)
    if arguments.json:
        print(json.dumps(body, indent=1))
        return 0
    for line in pages.lines(body):
        print(visible(line))
    if arguments.html:
        print(f"\npage: {Path(arguments.html).resolve()}")
    sys.stdout.flush()
    return 0
