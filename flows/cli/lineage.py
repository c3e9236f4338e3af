"""`whetstone lineage`: from a score, model or run back to the rows it came from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

TAMPERED = 1
"""Exit code where something is not as it was made."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a score as [RUN:]rlvr/BENCHMARK/pass@1, a model or other artifact (stage-key or its folder), or a run",
    )
    parser.add_argument("--html", metavar="FILE", help="write a drawing as one page that loads nothing")
    parser.add_argument("--mermaid", action="store_true", help="print the graph in mermaid's language, for Markdown")
    parser.add_argument("--json", action="store_true", help="for machines: nodes, edges and faults as JSON")


def command(arguments: argparse.Namespace) -> int:
    """Print the graph: exit code 1 where something was tampered with or is missing."""
    from evaluation.pages import lineage as pages
    from flows.progress import Status
    from pipelines.base.files import write_atomic
    from tasks.lineage import trace as lineage
    from tasks.preflight import check as preflight

    preflight.summary_file(arguments.html, "--html")
    with Status(quiet=arguments.json) as status:
        body = lineage.trace(arguments.name, status).body()
    if arguments.html:
        write_atomic(Path(arguments.html), pages.html(body), durable=False)
    if arguments.json:
        print(json.dumps(body, indent=1))
    elif arguments.mermaid:
        print(pages.mermaid(body))
    else:
        for line in pages.tree(body):
            print(line)
        if arguments.html:
            print(f"page: {Path(arguments.html).resolve()}")
    return TAMPERED if body["faults"] else 0
