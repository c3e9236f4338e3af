"""Where the project is, and how a child process finds it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def home() -> Path:
    """The project folder: `WHETSTONE_HOME`, else `.whetstone` in the working directory."""
    return Path(os.environ.get("WHETSTONE_HOME") or Path.cwd() / ".whetstone").resolve()


def python_path(environment: Mapping[str, str] = os.environ) -> str:
    """PYTHONPATH for a child process: the project first, then what the environment has."""
    return os.pathsep.join(part for part in (str(ROOT), environment.get("PYTHONPATH", "")) if part)
