"""Modules that a recipe names (`package.module:name`, plug-ins): found in the working folder too, after everything else."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("flows", "tasks", "pipelines", "evaluation", "whetstone_rlvr")
"""Names that are the project's wherever a module is imported by them."""


class NameTaken(ImportError):
    """The working folder has a module that cannot be imported, because another one has its name."""


def import_named(name: str) -> ModuleType:
    """Import a module that a recipe names.

    Raises:
        NameTaken: the working folder has it, and another module of that name is found first.
        ImportError: there is none, or it imports what is not there.
    """
    if clash := name_clash(name):
        raise NameTaken(clash, name=name)
    _find(name)
    return importlib.import_module(name)


def raised_at(error: BaseException, function: Callable[..., Any] | None = None) -> str:
    """`file:line` in the user's code that an exception comes from: the last frame that is neither a library's nor the project's.

    Args:
        function: that was called; its own file counts as the user's, and its first line where the call itself failed.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.filename}:{error.lineno}"
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    own = code.co_filename if code is not None else None
    if place := users_line(error, own):
        return place
    if code is not None:
        return f"{own}:{code.co_firstlineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def users_line(error: BaseException, own: str | None = None) -> str:
    """`file:line` of the last frame of an exception that is neither a library's nor the project's; empty where there is none.

    Args:
        own: a file that counts as the user's wherever it is.
    """
    paths = sysconfig.get_paths()
    root = Path(__file__).resolve().parents[2]
    others = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")] + [root / p for p in PACKAGES]
    others.append(root / "whetstone_launcher.py")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = frame.filename
        if file == own or not (file.startswith("<") or any(Path(file).is_relative_to(other) for other in others)):
            return f"{file}:{frame.lineno}"
    return ""


def is_there(name: str) -> bool:
    """Whether a module that a recipe names can be found; nothing below its first package is imported.

    Raises:
        NameTaken: as `import_named`.
    """
    if clash := name_clash(name):
        raise NameTaken(clash, name=name)
    _find(name)
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _find(name: str) -> None:
    """Search the working folder too where nothing else has the module's package."""
    top = name.partition(".")[0]
    if top and top not in sys.modules and importlib.util.find_spec(top) is None:
        search_working_folder()


def search_working_folder() -> None:
    """Search the working folder for modules from now on, after everything else."""
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)


def name_clash(name: str) -> str:
    """Why a module of the working folder is not the one that is imported by its name, and what to do; empty without such a clash."""
    top = name.partition(".")[0]
    file = module_file(Path.cwd(), name)
    if file is None or not top.isidentifier():
        return ""
    taken = _taker(top, file)
    if not taken:
        return ""
    shown = os.path.relpath(file).split(os.sep)[0]
    return f"{shown} of the working folder cannot be imported: {taken}. Rename it to my_{shown} or the like, and write my_{name}"


def module_file(folder: Path, module: str) -> Path | None:
    """The file of a dotted module name in a folder; None where it is not there."""
    path = folder.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _taker(top: str, file: Path) -> str:
    """What is imported by the name in place of the working folder's file; empty where that is imported."""
    folder = Path.cwd().resolve()
    if top in PACKAGES:
        own = Path(__file__).resolve().parents[2]
        return "" if own == folder else f"{top} is a package of the project's"
    if top in sys.stdlib_module_names:
        return f"{top} is a module of Python's own"
    spec = importlib.machinery.PathFinder.find_spec(top, [*(entry or str(folder) for entry in sys.path), str(folder)])
    if spec is None or spec.origin is None or Path(spec.origin).resolve().is_relative_to(folder):
        return ""
    return f"{spec.origin} has that name"
