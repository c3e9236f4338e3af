"""Rows of databases: the same file for the same rows, in whatever order they come; what is wrong is said of its field."""

from __future__ import annotations

import json
import sqlite3

import postgres
import pytest

from pipelines.base.errors import DataError
from pipelines.data import remote, tables


@pytest.fixture(autouse=True)
def _anew(home):
    remote.forget()


@pytest.fixture
def database(tmp_path):
    with sqlite3.connect(tmp_path / "rows.db") as store:
        store.execute("CREATE TABLE sums (prompt TEXT, answer INTEGER, level REAL, note BLOB)")
        store.executemany(
            "INSERT INTO sums VALUES (?, ?, ?, ?)", [(f"{i} + {i} =", 2 * i, i / 2, b"\xff") for i in range(30)]
        )
    store.close()
    return f"sqlite:///{tmp_path}/rows.db"


def lines(path, query, url_env=None):
    remote.forget()
    (file,) = tables.listing(path, url_env, query)
    return file, file.place.read_text().splitlines()


def refusal(path, query, url_env=None):
    with pytest.raises(DataError) as caught:
        lines(path, query, url_env)
    (problem,) = caught.value.problems
    assert problem.fix
    return str(problem)


def test_the_file_is_of_the_rows_and_not_of_their_order(database, home):
    first, rows = lines(database, "SELECT * FROM sums ORDER BY answer")
    again, _ = lines(database, "SELECT * FROM sums ORDER BY answer DESC")
    assert first.version == again.version and rows == sorted(rows) and len(rows) == 30
    assert json.loads(rows[0]) == {"prompt": "0 + 0 =", "answer": 0, "level": 0.0, "note": "\udcff"}
    assert lines(database, "SELECT * FROM sums WHERE answer < 50")[0].version != first.version
    assert len(lines(database, "SELECT prompt, answer FROM sums WHERE prompt LIKE '1%' LIMIT 3")[1]) == 3
    assert {path.name for path in (home / "remote").iterdir() if path.name.startswith(".")} == set()


def test_a_query_is_asked_once_a_minute(database):
    (file,) = tables.listing(database, None, "SELECT * FROM sums")
    with sqlite3.connect(database.removeprefix("sqlite:///")) as store:
        store.execute("DELETE FROM sums WHERE answer = 2")
    store.close()
    assert tables.listing(database, None, "SELECT * FROM sums") == [file]
    assert lines(database, "SELECT * FROM sums")[0].version != file.version


def test_a_statement_that_writes_leaves_the_database_as_it_was(database):
    assert "curate.sources.query: it selects nothing" in refusal(database, "DELETE FROM sums")
    assert len(lines(database, "SELECT * FROM sums")[1]) == 30


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("SELECT missing FROM sums", "curate.sources.query: the database refuses it (no such column: missing)"),
        ("SELECT * FROM sums WHERE answer = 1", "curate.sources.query: it gives no rows"),
        (
            "SELECT a.answer, b.answer FROM sums a, sums b",
            "curate.sources.query: two of its columns are called 'answer'",
        ),
    ],
)
def test_queries_that_are_refused(database, query, problem):
    assert problem in refusal(database, query)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("sqlite:////nowhere/rows.db", "curate.sources.path: there is no file /nowhere/rows.db"),
        ("rows.db", "curate.sources.path: it is no address of a database"),
        ("postgrez://host/rows", "curate.sources.path: SQLAlchemy knows no database 'postgrez'"),
        (
            "mysql+pymysql://host/rows",
            "curate.sources.path: its driver pymysql is not installed. Run: pip install pymysql",
        ),
    ],
)
def test_addresses_that_are_refused(path, problem):
    assert problem in refusal(path, "SELECT 1")


def test_what_is_secret_comes_from_the_environment_and_is_not_said(database, monkeypatch, home):
    assert "curate.sources.url_env: the environment has no ROWS_URL" in refusal(None, "SELECT 1", "ROWS_URL")
    monkeypatch.setenv("ROWS_URL", database)
    file, rows = lines(None, "SELECT * FROM sums", "ROWS_URL")
    assert len(rows) == 30 and file.url.endswith(" of ROWS_URL")
    monkeypatch.setenv("ROWS_URL", "postgresql+psycopg2://ann:hunter22@127.0.0.1:9/rows")
    told = refusal(None, "SELECT 1", "ROWS_URL")
    assert told.startswith("curate.sources.url_env: the database cannot be reached (") and "hunter22" not in told


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.skipif(postgres.programs() is None, reason=postgres.MISSING)
def test_rows_of_postgresql(monkeypatch):
    """Types that JSON lacks, a query with a cast and a percent sign, more rows than are in memory at a time."""
    with postgres.running("rows") as address:
        monkeypatch.setenv("ROWS_URL", f"postgresql+psycopg2://{address}/rows")
        query = """SELECT 'q' || i AS prompt, i::text AS answer, 1.50::numeric AS price, date '2024-05-06' AS day,
                   '{"a": [1]}'::jsonb AS info FROM generate_series(1, 2500) i WHERE 'x' LIKE 'x%' ORDER BY random()"""
        first, rows = lines(None, query, "ROWS_URL")
        assert len(rows) == 2500 and lines(None, query, "ROWS_URL")[0].version == first.version
        row = next(row for row in map(json.loads, rows) if row["prompt"] == "q7")
        assert row == {"prompt": "q7", "answer": "7", "price": "1.50", "day": "2024-05-06", "info": {"a": [1]}}
        assert "curate.sources.query: the database refuses it (column" in refusal(None, "SELECT missing", "ROWS_URL")
