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
    parser.add_argument(
        "--kubernetes",
        type=Path,
        metavar="FILE",
        help="flow runs are Jobs of Kubernetes, by this base job template (docs/kubernetes-pool.yaml), not processes of workers",
    )


def command(arguments: argparse.Namespace) -> int:
    """Create or update them, and print the names of the deployments."""
    from flows import deploy

    deploy.deploy(
        arguments.file, arguments.gpus, arguments.unresponsive_after, arguments.notify_block, arguments.kubernetes
    )
    for name in deploy.names(arguments.file):
        print(f"deployed {name}")
    worker = f"prefect worker start --pool {deploy.POOL}" if arguments.kubernetes else "whetstone worker"
    where = (
        "beside the cluster, with prefect-kubernetes" if arguments.kubernetes else "on every machine that should work"
    )
    print(f"next, {where}: {worker}")
    return 0
