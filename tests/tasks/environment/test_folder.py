"""The check of the store's databases: damage is named, what a killed process left half written is not damage."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipelines.base import project
from tasks.environment import folder as store

KILLED_WHILE_WRITING = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("pragma cache_size = 1")
database.execute("begin")
database.executemany("insert into runs values (?)", [("x" * 3000,)] * 500)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "mlflow.db"
    connection = sqlite3.connect(path)
    connection.executescript(
        "create table alembic_version (v); create table runs (name); insert into runs values ('kept');"
    )
    connection.close()
    return path


def test_a_write_that_was_killed_is_undone(database):
    """It was called damage, and every later run was refused."""
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(database)], check=False)
    assert done.returncode == -signal.SIGKILL and database.with_name("mlflow.db-journal").stat().st_size > 0
    store.check_database(database, "MLflow", "runs")
    connection = sqlite3.connect(database)
    assert connection.execute("select name from runs").fetchall() == [("kept",)]
    connection.close()


def test_damage_is_named_and_left_alone(database):
    content = database.read_bytes()
    database.write_bytes(b"no database at all".ljust(4096) + content[4096:])
    before = database.read_bytes()
    with pytest.raises(store.StoreError, match=r"mlflow.db is damaged.*move it aside"):
        store.check_database(database, "MLflow", "runs")
    assert database.read_bytes() == before


def test_a_database_that_is_not_there_is_not_made(tmp_path):
    store.check_database(tmp_path / "mlflow.db", "MLflow", "runs")
    assert not list(tmp_path.iterdir())


def test_processes_that_start_together_make_the_folder_together(tmp_path):
    """What a test run with two workers does in a fresh clone."""
    with ThreadPoolExecutor(8) as pool:
        for number in range(50):
            home, together = tmp_path / f"a{number}" / "home", threading.Barrier(8)

            def prepare(home=home, together=together):
                together.wait()
                store.prepare(home)

            for started in [pool.submit(prepare) for _ in range(8)]:
                started.result()
            assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["/proc/whetstone", "/dev/null/whetstone", "x" * 300, "loop/inside"])
def test_a_folder_that_cannot_be_is_one_line(tmp_path, monkeypatch, name):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / name))
    with pytest.raises(store.StoreError, match="WHETSTONE_HOME") as refused:
        store.prepare(project.home())
    assert "\n" not in str(refused.value)
