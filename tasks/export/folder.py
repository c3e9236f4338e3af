"""A model as a folder that anybody can load: transformers, vLLM, llama.cpp after its conversion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from pipelines.base.errors import UserError
from pipelines.base.files import atomic_folder, read_object
from pipelines.base.secrets import redact
from tasks.export import adapter, card
from tasks.export.trained import Trained

ABOUT = "whetstone.json"
"""What our own stages read of a model's folder: its system message, and the digest of its template."""
CONVERTER = "convert_hf_to_gguf.py"
"""Of llama.cpp, in its source tree."""
LLAMA_CPP = "LLAMA_CPP"
"""The environment variable that names that source tree."""


def write(
    model: Trained,
    to: Path,
    *,
    name: str | None = None,
    licence: str | None = None,
    gguf: str | None = None,
    only_adapter: bool = False,
) -> list[Path]:
    """Write the model with its card; returns the files.

    Args:
        to: the folder, which must not exist, or be empty.
        name: in the card; default: the folder's.
        gguf: also a GGUF file of this type, made by llama.cpp.
        only_adapter: the adapters by themselves, in peft's format, instead of the whole model.

    Raises:
        UserError: the folder has something in it, cannot be made, llama.cpp's converter is not there or fails, or there are no adapters.
    """
    converter = check(model, gguf, only_adapter=only_adapter)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"--to {to}", "there is something already", "Name a new folder.")
    try:
        with atomic_folder(to) as building:
            if only_adapter:
                adapter.write(model, building, name or to.name)
                _without_places(building / adapter.BASE / ABOUT)
            else:
                shutil.copytree(model.folder, building, dirs_exist_ok=True)
            _without_places(building / ABOUT)
            about = card.text(model, name or to.name, licence, only_adapter=only_adapter)
            (building / "README.md").write_text(about, encoding="utf-8")
            if converter is not None and gguf is not None:
                _convert(converter, building, f"{(name or to.name).rpartition('/')[2]}-{gguf}.gguf", gguf)
    except OSError as error:
        raise UserError(f"--to {to}", error.strerror or error, "Name a folder that can be made.") from None
    return sorted(path for path in to.rglob("*") if path.is_file())


def check(model: Trained, gguf: str | None, *, only_adapter: bool) -> list[str] | None:
    """What an export needs is there; returns the command that converts to GGUF, None where no such file is asked for.

    Raises:
        UserError: as `write`, before anything is written.
    """
    if only_adapter:
        adapter.of(model)
        if gguf:
            raise UserError(
                "--gguf", "a GGUF file is of a whole model, and --adapter writes none", "Give one of the two."
            )
    return gguf_converter() if gguf else None


def _without_places(file: Path) -> None:
    """Take the folder of the model that it was made from out of what goes elsewhere."""
    about = read_object(file)
    if about is not None:
        about = {key: value for key, value in about.items() if key != "base"}
        file.write_text(json.dumps(about, indent=1, sort_keys=True))


def gguf_converter() -> list[str]:
    """The command that converts a folder to GGUF.

    Raises:
        UserError: llama.cpp's source tree is not named, or has no converter.
    """
    tree = os.environ.get(LLAMA_CPP)
    on_path = shutil.which(CONVERTER)
    if tree and (Path(tree) / CONVERTER).is_file():
        return [sys.executable, str(Path(tree) / CONVERTER)]
    if on_path and not tree:
        return [on_path]
    where = f"{LLAMA_CPP}={tree} has no {CONVERTER}" if tree else f"{CONVERTER} of llama.cpp is not here"
    raise UserError(
        "--gguf",
        where,
        f"Get it with `git clone --depth 1 https://github.com/ggml-org/llama.cpp`, set {LLAMA_CPP} to that folder, and install the "
        "package gguf.",
    )


def _convert(converter: list[str], folder: Path, name: str, kind: str) -> None:
    command = [*converter, str(folder), "--outfile", str(folder / name), "--outtype", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / name).is_file():
        output = redact((done.stderr or done.stdout).strip()[-600:])
        raise UserError(
            f"--gguf {kind}", f"llama.cpp's converter failed: {output or done.returncode}", "Export without --gguf."
        )
