"""Answers of judges on disk, by content: a question that was asked before is not paid for again."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from pipelines.base.files import digest

WAIT_S = 60.0
"""How long a process waits for another one that writes."""


class Cache:
    """What endpoints answered, in one SQLite file that several processes may share.

    Args:
        path: of the file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as store:
                store.execute("PRAGMA journal_mode=WAL")
                store.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, body TEXT NOT NULL)")

    @staticmethod
    def key(question: dict[str, Any]) -> str:
        """Of a request: model, messages and everything that shapes the answer; where the server is does not count."""
        return digest([question])

    def read(self, keys: list[str]) -> dict[str, dict[str, Any]]:
        """Key → body of those that are known; a damaged entry is not."""
        if self.path is None:
            return {}
        known = {}
        with self._open() as store:
            for key in keys:
                row = store.execute("SELECT body FROM answers WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    try:
                        known[key] = json.loads(row[0])
                    except json.JSONDecodeError:
                        continue
        return known

    def write(self, answers: dict[str, dict[str, Any]]) -> None:
        """Keep answers."""
        if self.path is None or not answers:
            return
        with self._open() as store:
            rows = [(key, json.dumps(body)) for key, body in answers.items()]
            store.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)

    def _open(self) -> _Connection:
        return _Connection(sqlite3.connect(str(self.path), timeout=WAIT_S))


class _Connection:
    """A connection for one block: committed and closed at its end."""

    def __init__(self, store: sqlite3.Connection) -> None:
        self.store = store

    def __enter__(self) -> sqlite3.Connection:
        return self.store

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.store.commit()
        self.store.close()
