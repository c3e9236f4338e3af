"""`whetstone worker`: run the deployments of the Prefect server on this machine."""

from __future__ import annotations

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--queue", action="append", default=[], choices=["cpu", "gpu"], help="only this kind of stage")


def command(arguments: argparse.Namespace) -> int:
    """Run a worker until it is stopped; returns its exit code."""
    from flows import deploy

    return deploy.worker(arguments.queue)
