"""Sources that lie elsewhere: what is there now, and the copies of it that are read. Addresses of files, and queries of databases."""

from __future__ import annotations

from pathlib import Path

from pipelines.data import remote, tables
from pipelines.data.remote import Progress, RemoteFile
from pipelines.recipe.source import Source


def address(source: Source) -> str | None:
    """What a source's copies are remembered by; None for a source that is here or is generated."""
    if source.kind == "sql":
        return tables.address_of(source.path, source.url_env, str(source.query))
    return str(source.path) if source.elsewhere else None


def listing(source: Source) -> list[RemoteFile]:
    """The files that a source is read from, each with its version; none of a source that is here or is generated.

    Raises:
        DataError: the store or the database cannot be asked, or has nothing.
    """
    where = address(source)
    if where is None:
        return []
    if source.kind == "sql":
        return remote.remembered(where) or tables.listing(source.path, source.url_env, str(source.query))
    return remote.listing(where)


def fetch(source: Source, progress: Progress = lambda done, total: None) -> dict[Path, RemoteFile]:
    """Their copies here; what is missing is fetched.

    Raises:
        DataError: as `listing`, or `remote.fetch`.
    """
    listing(source)
    return remote.fetch(str(address(source)), progress)
