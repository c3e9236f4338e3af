"""What earlier processes have read from source files, by the digest of the text: parsing two hundred files takes a second."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.base.files import digest, read_json, write_atomic
from pipelines.base.project import home
from tasks.keys import syntax

MOST = 5000
"""Entries of the file; beyond them it starts over."""
_new: dict[str, list[Any]] = {}


def get(mark: str) -> tuple[str, tuple[str, ...]] | None:
    """(digest of the code, names of what it imports); None where no process has read that text."""
    entry = _kept(_file()).get(mark)
    return (entry[0], tuple(entry[1])) if entry else None


def put(mark: str, code: str, imported: tuple[str, ...]) -> None:
    """Keep what was read; written when this process ends."""
    if not _new:
        atexit.register(_save, _file())
    _new[mark] = [code, list(imported)]


def _file() -> Path:
    return home() / ".checked" / f"code-{_version()}.json"


@cache
def _version() -> str:
    """Of what reads the text: another Python, or other code of ours, reads it again."""

    own = [inspect.getsource(function) for function in (syntax.parse, syntax.imports)]
    return digest([sys.version, *own])[:12]


@cache
def _kept(file: Path) -> dict[str, list[Any]]:
    """The file's entries, where it is as it was written; none otherwise."""
    body = read_json(file) if file.exists() else None
    if not isinstance(body, dict) or not isinstance(body.get("entries"), dict):
        return {}
    entries = body["entries"]
    return entries if body.get("digest") == digest(entries) and all(map(_is_entry, entries.values())) else {}


def _is_entry(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and re.fullmatch("[0-9a-f]{64}", value[0]) is not None
        and isinstance(value[1], list)
        and all(isinstance(name, str) for name in value[1])
    )


def _save(file: Path) -> None:
    """Add what this process has read; of two that end at once, one's entries are lost and read again."""
    if not file.parent.parent.is_dir():
        return  # no project folder, or one that is gone
    _kept.cache_clear()
    entries = {**_kept(file), **_new}
    entries = entries if len(entries) <= MOST else dict(_new)
    with contextlib.suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        write_atomic(file, json.dumps({"digest": digest(entries), "entries": entries}), durable=False)
