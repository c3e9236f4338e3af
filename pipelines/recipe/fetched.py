"""Sources that lie elsewhere: what is there now, and the copies of it that are read. Addresses of files, and queries of databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.data import remote, tables
from pipelines.data.remote import Progress, RemoteFile
from pipelines.recipe.source import Source


def address(source: Source) -> str:
    """What the copies of a source that lies elsewhere (`Source.elsewhere`) are remembered by."""
    if source.kind == "sql":
        return tables.address_of(source.path, source.url_env, str(source.query))
    return str(source.path)


def listing(source: Source) -> list[RemoteFile]:
    """The files that a source which lies elsewhere is read from, each with its version.

    Raises:
        DataError: the store or the database cannot be asked, or has nothing.
    """
    if source.kind == "sql":
        return tables.listing(source.path, source.url_env, str(source.query))
    return remote.listing(address(source))


def pinned(source: Source) -> list[dict[str, Any]]:
    """`listing` as plain values, which `remote.pin` takes for what is there in another process.

    Raises:
        DataError: as `listing`.
    """
    listing(source)
    return remote.pinned(address(source))


def fetch(source: Source, progress: Progress = lambda done, total: None) -> dict[Path, RemoteFile]:
    """Their copies here; what is missing is fetched.

    Raises:
        DataError: as `listing`, or `remote.fetch`.
    """
    listing(source)
    return remote.fetch(address(source), progress)
