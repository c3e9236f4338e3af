"""The project as an installed distribution: its name and version, and how what it needs is installed."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from pipelines.base.project import ROOT, is_checkout

NAME = "whetstone-rlvr"
"""On PyPI `whetstone` is another project."""


def version() -> str:
    """Of the code that runs: the source tree's own, else the installed distribution's."""
    if is_checkout():
        return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    return importlib.metadata.version(NAME)


def install_hint(extra: str) -> str:
    """The command that installs what an extra of `pyproject.toml` needs.

    It fetches the needed libraries alone. In a source tree pip builds the project from there; elsewhere the libraries are named, since
    pip would look for the project's own name on an index.

    Args:
        extra: such as `gguf`.
    """
    if is_checkout():
        where = "." if Path.cwd() == ROOT else str(ROOT)
        return f'pip install -e "{where}[{extra}]"'
    return "pip install " + " ".join(f'"{library}"' for library in libraries(extra))


def libraries(extra: str) -> list[str]:
    """What an extra of the installed distribution adds, such as `gguf>=0.10`."""
    lines = importlib.metadata.requires(NAME) or []
    marked = re.compile(rf"^(.*?)\s*;\s*extra\s*==\s*['\"]{re.escape(extra)}['\"]\s*$")
    return [match[1] for line in lines if (match := marked.match(line))]


def is_installed(extra: str) -> bool:
    """Whether every library that an extra adds is installed, whatever its version."""
    for library in libraries(extra):
        try:
            importlib.metadata.version(re.split(r"[^\w.-]", library, maxsplit=1)[0])
        except importlib.metadata.PackageNotFoundError:
            return False
    return True
