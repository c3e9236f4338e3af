"""`whetstone runs`: pipeline runs, newest first."""

from __future__ import annotations

import argparse
import json
import time

from flows.cli.arguments import integer


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--experiment", help="only this MLflow experiment")
    parser.add_argument("--limit", type=integer(1), default=20, metavar="N", help="the N newest (20)")
    parser.add_argument("--remote", action="store_true", help="ask MLflow itself: runs of other machines too (slower)")
    parser.add_argument("--json", action="store_true")


def command(arguments: argparse.Namespace) -> int:
    """Print a line for each run."""
    from tasks import environment
    from tasks.store import index
    from tasks.tracking import lookup

    if arguments.remote:
        listed = lookup.mlflow_runs(arguments.experiment, arguments.limit)
    else:
        listed = index.runs(arguments.experiment)[: arguments.limit]
    if arguments.json:
        print(json.dumps([{k: v for k, v in entry.items() if k != "summary"} for entry in listed], indent=1))
        return 0
    if not listed:
        folder = f"{environment.home()} (WHETSTONE_HOME, else .whetstone of the working folder)"
        place = "MLflow" if arguments.remote else folder
        if arguments.experiment:
            print(f"no pipeline run of experiment {arguments.experiment!r} in {place}")
        else:
            print(f"no pipeline run in {place}; to make one: whetstone run recipes/quickstart.yaml")
    for entry in listed:
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["started"]))
        took = f"{entry['seconds']:.0f} s" if entry["seconds"] else "–"
        print(f"{entry['run_id']}  {started}  {entry['status']:<9} {took:>8}  {entry['name']}")
    return 0
