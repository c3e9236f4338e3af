"""The project folder: private to its user, writable, its databases whole. Checked before anything is started."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from pipelines.base.errors import UserError
from pipelines.base.files import disk_full
from pipelines.base.secrets import redact

log = logging.getLogger("whetstone.store")
STORE_ENTRIES = ("runs", "mlflow.db", "pipelines", "prefect", "mlartifacts")
"""Any of these in a folder says that it is a store of ours."""
LEAST_FREE = 20e6
"""Bytes below which nothing is started: MLflow's and Prefect's empty databases take 5 MB."""


class StoreError(UserError):
    """The project folder cannot be used; the message says what to move or change."""


def explain(error: OSError, home: Path) -> StoreError | None:
    """An error of the file system as one line with what to do; None for one that is no fault of the disk."""
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else home
    full = disk_full(error, home)
    if full is not None:
        return StoreError(str(full))
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError(
            f"{where} cannot be written ({error.strerror})",
            fix="Change its rights, or set WHETSTONE_HOME to a folder of yours.",
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return StoreError(
            f"{where} is in the way ({error.strerror})", fix="Move it aside, or set WHETSTONE_HOME to another folder."
        )
    if error.errno == errno.EIO:
        return StoreError(f"{where} cannot be read (input/output error): the disk or the network share is failing.")
    return None


def prepare(home: Path) -> None:
    """Make the folder, readable by its user only.

    Raises:
        StoreError: it cannot be made or written.
    """
    try:
        home.mkdir(parents=True, mode=0o700, exist_ok=True)  # another process may be making it at the same time
        _make_private(home)
        for name in STORE_ENTRIES:
            path = home / name
            if path.exists() and path.is_dir() == name.endswith(".db"):
                kind = "a folder" if path.is_dir() else "a file"
                raise StoreError(f"{path} is {kind}, which no version of whetstone makes", fix="Move it aside.")
    except OSError as error:
        raise explain(error, home) or StoreError(
            f"{home} cannot be made ({error.strerror})", fix="Set WHETSTONE_HOME to a folder that can."
        ) from None


@contextlib.contextmanager
def only_looked_at(home: Path) -> Iterator[None]:
    """For a block that only reads: a folder that was not there, and holds nothing but answers remembered for next time, goes again."""
    new = not home.exists()
    try:
        yield
    finally:
        checked = home / ".checked"
        if new and checked.is_dir() and [*home.iterdir()] == [checked]:
            shutil.rmtree(checked, ignore_errors=True)
            with contextlib.suppress(OSError):
                home.rmdir()


def _make_private(home: Path) -> None:
    status = home.stat()
    mode = stat.S_IMODE(status.st_mode)
    if not mode & 0o077:
        return
    own_store = (
        status.st_uid == os.geteuid()
        and any((home / name).exists() for name in STORE_ENTRIES)
        and not mode & stat.S_ISVTX
    )
    if own_store or (status.st_uid == os.geteuid() and not any(home.iterdir())):
        home.chmod(0o700)
        log.warning("%s could be read by others; it is now private to its user (mode 700)", home)
    else:
        log.warning("%s can be read by others, with everything in it; `chmod 700 %s` makes it private", home, home)


def check(home: Path) -> None:
    """That something can be written, that the disk has room, and that the databases are databases.

    Raises:
        StoreError: names the file and what to do with it.
    """
    probe = home / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(b"x" * 4096)
        filesystem = os.statvfs(home)
    except OSError as error:
        raise explain(error, home) or error from None
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    room = filesystem.f_bavail * filesystem.f_frsize
    if room < LEAST_FREE:
        raise StoreError(
            f"the disk of {home} is full ({room / 1e6:.1f} MB free)",
            fix="Free space, or set WHETSTONE_HOME to another disk.",
        )
    check_database(
        home / "mlflow.db", "MLflow", "runs, metrics and models recorded so far; artifacts in runs/ stay usable"
    )
    check_database(home / "prefect" / "prefect.db", "Prefect", "the history of flow runs; nothing else depends on it")


def check_database(path: Path, owner: str, holds: str) -> None:
    """That an SQLite file is one, is whole in its first pages, and has tables where it has any bytes.

    Raises:
        StoreError: it is not; the file is left as it is.
    """
    if not path.exists():
        return
    aside = (
        f"It holds {holds}. Restore it from a backup, or move it aside (`mv {path} {path}.damaged`) to begin a new one."
    )
    if path.is_file() and path.stat().st_size == 0:  # what a full disk leaves of a new one, and SQLite begins in it
        return
    try:
        # for writing, because SQLite undoes what a killed process left half written when the file is opened next
        connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=5)
        try:
            tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
            for table in tables & {"runs", "experiments", "alembic_version", "flow_run"}:
                connection.execute(f"select * from {table} limit 1").fetchall()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if "locked" in str(error) or "unable to open" in str(error):
            return
        raise StoreError(f"{owner}'s database {path} is damaged ({redact(error)})", fix=aside) from None
    if owner == "MLflow" and "alembic_version" not in tables:  # Prefect's may be in the making by another run
        raise StoreError(f"{owner}'s database {path} is another program's, or was cut off while it was made", fix=aside)
