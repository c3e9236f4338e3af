"""`whetstone deploy`: what the Prefect server must have before workers can run recipes."""

from __future__ import annotations

import argparse
from pathlib import Path

from flows.cli.arguments import integer


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--file", type=Path, help="deployments; the project's prefect.yaml unless given")
    parser.add_argument(
        "--gpus",
        type=integer(1),
        default=1,
        metavar="N",
        help="stages that may use a GPU at once, over all machines",
    )
    parser.add_argument(
        "--unresponsive-after", type=int, metavar="SECONDS", help="without heartbeats a flow run is Crashed (300)"
    )
    parser.add_argument(
        "--notify-block",
        metavar="TYPE/NAME",
        help="a notification block of the server (slack-webhook/nightly): it tells of crashed and failed flow runs, even without a worker",
    )


def command(arguments: argparse.Namespace) -> int:
    """Create or update them, and print the names of the deployments."""
    from flows import deploy

    deploy.deploy(arguments.file, arguments.gpus, arguments.unresponsive_after, arguments.notify_block)
    for name in deploy.names(arguments.file):
        print(f"deployed {name}")
    print("next, on every machine that should work: whetstone worker")
    return 0
