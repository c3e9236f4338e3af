"""Rows of SQL databases by SQLAlchemy: a query's result as a file of JSON lines that does not depend on the order the database chose.

The result is streamed to the project folder and sorted by content there: a database may give equal results in another order each
time, even with an ORDER BY, where its values tie. Its SHA-256 is what stands in a stage's key. Nothing is ever committed, so a
statement that writes leaves the database as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from pipelines.base.errors import DataError
from pipelines.base.files import digest, file_sha256
from pipelines.base.project import make_home
from pipelines.base.secrets import HIDDEN, redact
from pipelines.data import remote
from pipelines.data.remote import RemoteFile

SECTION = "curate.sources"
ROWS_AT_ONCE = 1000
"""Rows that are in memory at a time."""
NAME = "rows.jsonl"


def address_of(path: str | None, url_env: str | None, query: str) -> str:
    """A name of a query's result for messages, without what is secret in the address of its database.

    >>> address_of("sqlite:///rows.db", None, "select 1")
    'query 8400fd59 of sqlite:///rows.db'
    """
    return f"query {digest([path, url_env, query])[:8]} of {path or url_env}"


def listing(path: str | None, url_env: str | None, query: str) -> list[RemoteFile]:
    """The result of a query as a file that is here, as `remote.listing` has files: asked anew after a minute.

    Args:
        path: SQLAlchemy's address of the database, where nothing in it is secret.
        url_env: the environment variable that holds it otherwise.

    Raises:
        DataError: the database cannot be reached, refuses the query, or gives no rows; with the field.
    """
    address = address_of(path, url_env, query)
    files = remote.remembered(address)
    if not files:
        files = [_export(address, _url(path, url_env), query, f"{SECTION}.{'url_env' if url_env else 'path'}")]
        remote.remember(address, files)
    return files


def _url(path: str | None, url_env: str | None) -> str:
    if url_env is None:
        return str(path)
    url = os.environ.get(url_env, "")
    if not url:
        fix = f"export {url_env}=postgresql://USER:PASSWORD@HOST/DATABASE"
        raise DataError(f"{SECTION}.url_env", f"the environment has no {url_env}", fix)
    return url


def _export(address: str, url: str, query: str, field: str) -> RemoteFile:
    """Ask, sort, and put the result where its copy belongs."""
    folder = make_home() / "remote"
    folder.mkdir(parents=True, exist_ok=True)
    building = folder / f".{digest([address, os.getpid(), os.urandom(8).hex()])[:16]}"
    sorting, lines = building.with_suffix(".sqlite"), building.with_suffix(".part")
    try:
        with contextlib.closing(sqlite3.connect(sorting)) as store:
            store.execute("PRAGMA journal_mode = OFF")
            store.execute("CREATE TABLE rows (line TEXT)")
            count = 0
            for rows in _rows(url, query, field):
                store.executemany("INSERT INTO rows VALUES (?)", ((row,) for row in rows))
                count += len(rows)
            if not count:
                raise DataError(f"{SECTION}.query", "it gives no rows", "Check its conditions.")
            with open(lines, "w", encoding="ascii") as target:
                target.writelines(f"{line}\n" for (line,) in store.execute("SELECT line FROM rows ORDER BY line"))
        file = RemoteFile(address, NAME, lines.stat().st_size, f"sha256:{file_sha256(lines)}")
        file.place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(lines, file.place)
        return file
    finally:
        for path in (sorting, lines):
            Path(path).unlink(missing_ok=True)


def _rows(url: str, query: str, field: str) -> Iterator[list[str]]:
    """The result as JSON objects, some at a time.

    Raises:
        DataError: of the field `query`, or of the field that says where the database is.
    """
    import sqlalchemy
    from sqlalchemy import exc

    secret = ""
    try:
        parsed = sqlalchemy.make_url(url)
        secret = str(parsed.password or "")
        _check_file(parsed, field)
        engine = sqlalchemy.create_engine(parsed, poolclass=sqlalchemy.NullPool)
    except exc.NoSuchModuleError:
        raise DataError(field, f"SQLAlchemy knows no database {url.partition(':')[0]!r}", _DRIVERS) from None
    except exc.ArgumentError:
        raise DataError(field, "it is no address of a database", _DRIVERS) from None
    except ImportError as error:
        missing = str(error.name or error).partition(".")[0]
        package = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}.get(missing, missing)
        raise DataError(field, f"its driver {missing} is not installed", f"Run: pip install {package}") from None
    at = field
    try:
        with engine.connect() as connection:
            at = f"{SECTION}.query"
            options = {"stream_results": True, "yield_per": ROWS_AT_ONCE, "no_parameters": True}
            result = connection.execution_options(**options).exec_driver_sql(query)
            if not result.returns_rows:
                raise DataError(at, "it selects nothing", "Write a SELECT.")
            names = list(result.keys())
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataError(at, f"two of its columns are called {twice!r}", "Name one with AS.")
            for rows in result.partitions():
                yield [json.dumps(dict(zip(names, map(_plain, row), strict=True)), sort_keys=True) for row in rows]
    except exc.DBAPIError as error:
        reason = redact(
            str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
        )
        reason = reason.replace(secret, HIDDEN) if secret else reason
        what = "the database refuses it" if at.endswith("query") else "the database cannot be reached"
        fix = (
            "Try it with the database's own client." if at.endswith("query") else "Check address, network and password."
        )
        raise DataError(at, f"{what} ({reason[:300].rstrip('.')})", fix) from None
    finally:
        engine.dispose()


_DRIVERS = "Write it as SQLAlchemy has it: postgresql://USER@HOST/DATABASE, mysql+pymysql://..., sqlite:///FILE."


def _check_file(url: Any, field: str) -> None:
    """A SQLite file is there: connecting would make an empty one."""
    own = url.get_backend_name() == "sqlite" and url.database and not url.database.startswith("file:")
    if own and not Path(url.database).is_file():
        raise DataError(field, f"there is no file {url.database}", "sqlite:///FILE is relative to the working folder.")


def _plain(value: Any) -> Any:
    """A value of a column in JSON's types. Bytes that are not UTF-8 become half surrogates, which cost their row later, and not the table.

    >>> from decimal import Decimal
    >>> _plain(Decimal("1.50")), _plain(date(2024, 5, 6)), _plain(b"a"), _plain([1, None])
    ('1.50', '2024-05-06', 'a', [1, None])
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "surrogateescape")
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else str(value)
