"""The trainer as it is installed on this machine."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.external.settings import External

ABSENT = "absent"
_ASK = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


def resolved_python(name: str) -> str:
    """The path of the trainer's Python; its name where there is no such program."""
    path = shutil.which(str(Path(name).expanduser()))
    return str(Path(path).absolute()) if path else name


def trainer_version(settings: External) -> str:
    """The version that the recipe states, else the one that the trainer's Python says of its package."""
    from pipelines.external.adapter import adapter

    package = settings.package or adapter(settings.trainer).package
    return settings.version or version(resolved_python(settings.python), str(package))


@cache
def version(python: str, package: str) -> str:
    """The version of a package in a Python's environment; `absent` where it has none or cannot say."""
    ask = [python, "-I", "-c", _ASK, package]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ABSENT
    return told.stdout.strip() or ABSENT if told.returncode == 0 else ABSENT
