"""`whetstone export`: the model of a run as a folder of its own, with a card."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

MODEL = "a run (its id, first characters or name; its last model), RUN/STAGE, or the model of an artifact (stage-key)"
"""Help of the argument that names a model."""
GGUF_TYPES = ("f32", "f16", "bf16", "q8_0", "auto")
"""What llama.cpp's converter writes."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model(parser)
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="a new folder")
    parser.add_argument("--name", help="what the card calls the model; default: the folder's name")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a model, and what is said of it and written beside it."""
    parser.add_argument("model", metavar="RUN[/STAGE]", help=MODEL)
    parser.add_argument("--licence", metavar="NAME", help="the model's, for the card, such as apache-2.0")
    parser.add_argument("--gguf", choices=GGUF_TYPES, help="also a GGUF file of this type, by llama.cpp")
    parser.add_argument(
        "--adapter", action="store_true", help="only the adapters that `lora` has trained, in peft's format"
    )


def written(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `add_model` asks for, as `tasks.export.folder.write` and `hub.push` take it."""
    return {"licence": arguments.licence, "gguf": arguments.gguf, "only_adapter": arguments.adapter}


def command(arguments: argparse.Namespace) -> int:
    """Write the folder, and say what is in it."""
    from flows.progress import Status
    from tasks.export import folder, trained

    with Status() as progress:
        model = trained.find(arguments.model, progress)
        progress(f"copying {model.artifact.name}")
        files = folder.write(model, arguments.to, name=arguments.name, **written(arguments))
    size = sum(path.stat().st_size for path in files)
    print(f"{arguments.to}: {model.artifact.name}, {len(files)} files, {size / 2**20:.1f} MiB; its card is README.md")
    return 0
