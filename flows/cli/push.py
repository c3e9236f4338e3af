"""`whetstone push`: the model of a run into a repository of the Hugging Face hub."""

from __future__ import annotations

import argparse

from flows.cli.export import add_model, written


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model(parser)
    parser.add_argument("repository", metavar="OWNER/NAME", help="where to; made if it is not there")
    parser.add_argument("--public", action="store_true", help="a new repository is seen by everybody; default: private")


def command(arguments: argparse.Namespace) -> int:
    """Upload it, and say where it is."""
    from flows.progress import Status
    from tasks.export import hub, trained

    with Status() as progress:
        model = trained.find(arguments.model, progress)
        progress(f"uploading {model.artifact.name}")
        address = hub.push(model, arguments.repository, public=arguments.public, **written(arguments))
    print(address)
    return 0
