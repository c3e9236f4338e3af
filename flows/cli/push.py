"""`whetstone push`: the model of a run into a repository of the Hugging Face hub."""

from __future__ import annotations

import argparse

from flows.cli.export import MODEL


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("model", metavar="RUN[/STAGE]", help=MODEL)
    parser.add_argument("repository", metavar="OWNER/NAME", help="where to; made if it is not there")
    parser.add_argument("--public", action="store_true", help="a new repository is seen by everybody; default: private")
    parser.add_argument("--licence", metavar="NAME", help="the model's, for the card, such as apache-2.0")
    parser.add_argument(
        "--gguf", choices=("f32", "f16", "bf16", "q8_0", "auto"), help="also a GGUF file of this type, by llama.cpp"
    )


def command(arguments: argparse.Namespace) -> int:
    """Upload it, and say where it is."""
    from flows.progress import Status
    from tasks.export import hub, trained

    with Status() as progress:
        model = trained.find(arguments.model, progress)
        progress(f"uploading {model.artifact.name}")
        address = hub.push(
            model, arguments.repository, public=arguments.public, licence=arguments.licence, gguf=arguments.gguf
        )
    print(address)
    return 0
