"""`whetstone show`: one pipeline run: its stages, scores and files."""

from __future__ import annotations

import argparse
import json


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", help="the id of the run, or its first characters")
    parser.add_argument("--json", action="store_true")


def command(arguments: argparse.Namespace) -> int:
    """Print what the index, or else MLflow, knows of the run."""
    from flows import table
    from tasks.tracking import links, lookup

    body = lookup.find_run(arguments.run)
    if arguments.json:
        print(json.dumps(body, indent=1))
        return 0
    print(f"{body['name']}  {body['run_id']}  {body['status']}")
    summary = body.get("summary")
    if summary:
        width = max(9, *map(len, summary["stages"])) if summary["stages"] else 9
        for stage, about in summary["stages"].items():
            print(
                f"  {stage:<{width}} {about['status']:<7} {about['seconds']:>8.1f} s  {about['artifact']}  ({about['why']})"
            )
            for line in table.outcomes(about):
                print(f"    {line}")
        table.show(summary)
    else:
        for stage in body.get("stages", []):
            print(f"  {stage['name']:<30} {stage['status']}")
    if body.get("experiment_id"):
        print(links.run(body["experiment_id"], body["run_id"]))
    return 0
