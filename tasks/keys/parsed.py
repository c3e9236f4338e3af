"""What earlier processes have read from source files, by the digest of the text: parsing two hundred files takes a second."""

from __future__ import annotations

import atexit
import inspect
import sys
from functools import cache
from pathlib import Path

from pipelines.base.cache import Cache
from pipelines.base.files import digest
from pipelines.base.project import home
from tasks.keys import syntax

MOST = 5000
"""Entries of the file; beyond them the oldest are dropped."""
_new: dict[str, tuple[str, tuple[str, ...]]] = {}


def get(mark: str) -> tuple[str, tuple[str, ...]] | None:
    """(digest of the code, names of what it imports); None where no process has read that text."""
    return _known(_file()).get(mark)


def put(mark: str, code: str, imported: tuple[str, ...]) -> None:
    """Keep what was read; written when this process ends."""
    if not _new:
        atexit.register(_save, _file())
    _new[mark] = (code, imported)


def _file() -> Path:
    return home() / ".checked" / f"code-{_version()}.sqlite"


@cache
def _version() -> str:
    """Of what reads the text: another Python, or other code of ours, reads it again."""
    functions = [each for each in vars(syntax).values() if getattr(each, "__module__", "") == syntax.__name__]
    return digest([sys.version, *map(inspect.getsource, functions)])[:12]


@cache
def _known(file: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {mark: (code, tuple(imported)) for mark, (code, imported) in Cache(file).read().items()}


def _save(file: Path) -> None:
    if file.parent.parent.is_dir():  # otherwise there is no project folder, or one that is gone
        Cache(file, MOST).write(_new)
