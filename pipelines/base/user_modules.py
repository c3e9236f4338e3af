"""Modules and files that a recipe names (functions, plug-ins): found in the working folder too, after everything else."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pipelines.base.project import syntax_tree

PACKAGES = ("flows", "tasks", "pipelines", "evaluation", "whetstone_rlvr")
"""Names that are the project's wherever a module is imported by them."""
replaced: list[Callable[[ModuleType], None]] = []
"""Called with the module of a file that holds something else now, before the file is read again."""
_read: dict[str, str] = {}
"""The module of a file → digest of what the file held when it was imported."""


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


def import_file(path: Path) -> ModuleType:
    """The module of a file as it is now, under a name that no other file has. What it imports may stand beside it.

    Args:
        path: absolute.

    Raises:
        OSError: the file cannot be read. What its code raises propagates.
    """
    search_folder(str(Path.cwd()))
    if _imports_beside(path):
        search_folder(str(path.parent))
    name = f"{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    held = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    if name in sys.modules:
        if _read.get(name) == held:
            return sys.modules[name]
        old = sys.modules.pop(name)
        # Python takes bytecode of the same second and length for current.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        for call in replaced:
            call(old)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickle looks for its functions
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _read[name] = held
    return module


def _imports_beside(path: Path) -> bool:
    """Whether a file imports a module of its own folder."""
    try:
        tree = syntax_tree(path.read_bytes())
    except (SyntaxError, ValueError):  # whoever imports it says so
        return False
    nodes = [*ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    parts = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    names += [name for node in parts for name in (f"{node.module}", *(f"{node.module}.{a.name}" for a in node.names))]
    return any(module_file(path.parent, name) is not None for name in names)


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
        search_folder(os.getcwd())


def search_folder(folder: str) -> None:
    """Search a folder for modules from now on, after everything else."""
    if folder not in sys.path and not ("" in sys.path and folder == os.getcwd()):
        sys.path.append(folder)


def name_clash(name: str, folder: Path | None = None, others: Sequence[Path] = ()) -> str:
    """Why a module of a folder is not the one that is imported by its name, and what to do; empty without such a clash.

    Args:
        folder: the working folder, or another one that is searched after it.
        others: folders that may be searched before it.
    """
    top = name.partition(".")[0]
    here = Path.cwd() if folder is None else folder
    file = module_file(here, name)
    if file is None or not top.isidentifier():
        return ""
    taken = _taker(top, here.resolve(), others)
    if not taken:
        return ""
    shown = os.path.relpath(file, here).split(os.sep)[0]
    where = "the working folder" if here.resolve() == Path.cwd().resolve() else os.path.relpath(here)
    return f"{shown} of {where} cannot be imported: {taken}. Rename it to my_{shown} or the like, and write my_{name}"


def module_file(folder: Path, module: str) -> Path | None:
    """The file of a dotted module name in a folder; None where it is not there."""
    path = folder.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _taker(top: str, folder: Path, others: Sequence[Path]) -> str:
    """What is imported by the name in place of the folder's module; empty where that is imported. Arguments as in `name_clash`."""
    if top in PACKAGES:
        own = Path(__file__).resolve().parents[2]
        return "" if own == folder else f"{top} is a package of the project's"
    if top in sys.stdlib_module_names:
        return f"{top} is a module of Python's own"
    before = [*(entry or os.getcwd() for entry in sys.path), os.getcwd(), *map(str, others)]
    spec = importlib.machinery.PathFinder.find_spec(top, [*before, str(folder)])
    if spec is None or spec.origin is None or Path(spec.origin).resolve().is_relative_to(folder):
        return ""
    return f"{spec.origin} has that name"
