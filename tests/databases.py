"""Databases of MLflow and Prefect without rows, made once and then copied: making both takes 12 seconds of processor time."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

PREFECT = """
import asyncio
from prefect.server.database import provide_database_interface
asyncio.run(provide_database_interface().create_db())
"""

PARSED = "code-*.sqlite"
"""What `tasks.keys.parsed` keeps in a project folder: of two hundred source files, by the digest of their text."""


def prepare(home: Path) -> None:
    """Give a project folder that does not exist yet the databases that its first run would make.

    What a first run in an empty folder does is the subject of tests of its own, which call `whetstone` without this.
    """
    if not home.exists():
        home.mkdir(mode=0o700, parents=True)
        prefect(home / "prefect")
        mlflow(home / "mlflow.db", (home / "mlartifacts").as_uri())
        (home / ".checked").mkdir(mode=0o700)
        for file in _cache().glob(PARSED):
            shutil.copy(file, home / ".checked" / file.name)


def keep(home: Path) -> None:
    """Have the next project folders know what a run in this one has read from source files."""
    for file in (home / ".checked").glob(PARSED):
        kept = _cache() / file.name
        if not kept.exists() or kept.stat().st_size < file.stat().st_size:
            half = kept.with_name(f".{kept.name}.{os.getpid()}")
            shutil.copy(file, half)
            half.replace(kept)


def prefect(folder: Path) -> None:
    """Prefect's database in a PREFECT_HOME."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_made() / "prefect.db", folder / "prefect.db")


def mlflow(path: Path, artifacts: str) -> None:
    """MLflow's database, whose default experiment keeps its files below `artifacts`."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.copy(_made() / "mlflow.db", half)
    with contextlib.closing(sqlite3.connect(half)) as database, database:
        database.execute("update experiments set artifact_location = ?", (f"{artifacts}/0",))
    half.replace(path)


def store() -> None:
    """Give the project folder that the environment names MLflow's database, unless it has one."""
    from tasks import environment

    environment.prepare()
    if not (path := environment.home() / "mlflow.db").exists():
        mlflow(path, (environment.home() / "mlartifacts").as_uri())


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whetstone" / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _made() -> Path:
    folder = _cache() / "-".join(["databases", *(version(name) for name in ("mlflow", "prefect", "sqlalchemy"))])
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            half = folder.with_name(f"{folder.name}.half")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
            subprocess.run([sys.executable, "-c", PREFECT], env={**environment, "PREFECT_HOME": str(half)}, check=True)
            from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

            SqlAlchemyStore(f"sqlite:///{half / 'mlflow.db'}", (half / "mlartifacts").as_uri()).engine.dispose()
            half.rename(folder)
    return folder
