"""Where the project is, and how a child process finds it."""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_parsing = threading.Lock()
PARSE_ATTEMPTS = 5
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables that say how many threads the libraries of a process may use."""


def home() -> Path:
    """The project folder: `WHETSTONE_HOME`, else `.whetstone` in the working directory."""
    return Path(
        os.path.realpath(os.environ.get("WHETSTONE_HOME") or Path.cwd() / ".whetstone")
    )  # no error for links in a circle


def make_home() -> Path:
    """The project folder, made where it is not there; it holds recipes, data and answers, so its user alone may read it.

    Raises:
        OSError: it cannot be made.
    """
    folder = home()
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)  # another process may be making it at the same time
    return folder


def is_checkout() -> bool:
    """Whether the project runs from its source tree, and not from where an installer has put its packages."""
    return (ROOT / "recipes").is_dir() and (ROOT / "pyproject.toml").is_file()


def resource(name: str) -> Path:
    """A file or folder that is read at run time and stands beside the packages in the source tree; a wheel has it in `pipelines/shipped`.

    Args:
        name: `recipes`, `docs` or `prefect.yaml`.
    """
    return (ROOT if is_checkout() else ROOT / "pipelines" / "shipped") / name


def page(name: str) -> str:
    """Where a page of the documentation can be read, for messages: `docs/servers.md`, or its place in an installed package."""
    return f"docs/{name}.md" if is_checkout() else str(resource("docs") / f"{name}.md")


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of the project in a process of its own.

    It does not depend on what the working folder and PYTHONPATH hold: see `whetstone_launcher.py`.
    """
    return [sys.executable, "-P", "-u", str(ROOT / "whetstone_launcher.py"), module, *arguments]


def python_path(environment: Mapping[str, str] = os.environ) -> str:
    """PYTHONPATH for processes of other programs that import the project: the project first, then what the environment has."""
    inherited = environment.get("PYTHONPATH", "")
    return os.pathsep.join(part for part in (str(ROOT), inherited) if part) if inherited or is_checkout() else ""


def git(folder: Path, *arguments: str) -> str | None:
    """What git says in a folder; None where it is not there, or refuses."""
    import subprocess

    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, errors="replace", timeout=10, check=False
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def syntax_tree(text: str | bytes) -> ast.Module:
    """`ast.parse` that several threads may call.

    CPython 3.11 counts the depth of all threads in one number, so one that parses while another does may end in "AST constructor
    recursion depth mismatch" (python/cpython issue 106905). Libraries parse without our lock, hence the attempts.

    Raises:
        SyntaxError, ValueError: the text is no Python.
    """
    for attempt in range(PARSE_ATTEMPTS):
        try:
            with _parsing:
                return ast.parse(text)
        except SystemError:
            if attempt == PARSE_ATTEMPTS - 1:
                raise
    raise AssertionError
