"""Databases that the environment names are asked whether they are there."""

from __future__ import annotations

import socket
import threading

import pytest

from tasks import environment


def check(monkeypatch, home, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    home.mkdir(parents=True, exist_ok=True)
    environment.check_reachable()


@pytest.mark.parametrize("scheme", ["postgresql", "mysql+pymysql", "mssql+pyodbc"])
def test_a_database_that_is_away_is_named_without_its_password(monkeypatch, home, scheme):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(environment.Unreachable, match=r"MLFLOW_TRACKING_URI\) does not answer") as refused:
        check(monkeypatch, home, f"{scheme}://user:secret@127.0.0.1:{port}/mlflow")
    assert "secret" not in str(refused.value)


def test_one_that_takes_the_connection_and_says_nothing(monkeypatch, home):
    pytest.importorskip("psycopg2")
    monkeypatch.setattr(environment, "ANSWER_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: [server.accept() for _ in range(2)], daemon=True).start()
        with pytest.raises(environment.Unreachable, match="does not answer"):
            check(monkeypatch, home, f"postgresql://user@127.0.0.1:{server.getsockname()[1]}/mlflow")


@pytest.mark.parametrize("uri", ["databricks://profile", "file:///tmp/mlruns", "sqlite:///x.db"])
def test_what_is_no_database_server_is_not_asked(monkeypatch, home, uri):
    check(monkeypatch, home, uri)
