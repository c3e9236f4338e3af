"""Values on disk by key, in one SQLite file that several processes share: what was computed or paid for once is not computed again."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.base.files import digest

WAIT_S = 60.0
"""How long a process waits for another one that writes."""


class Cache:
    """Values that JSON can hold.

    A file that is missing, damaged, or cannot be read or written is as good as an empty one, and every value is checked against a digest.
    A write is whole or has not happened, however the process ends.

    Args:
        path: of the file; its folder's parent must exist. None keeps nothing.
        most: entries beyond which the oldest are dropped; None keeps all.
    """

    def __init__(self, path: Path | None, most: int | None = None) -> None:
        self.path, self.most = path, most

    def read(self, keys: Iterable[str] | None = None) -> dict[str, Any]:
        """Key → value of those that are known, of all without `keys`; a damaged entry is not known."""
        if self.path is None or not self.path.exists():
            return {}
        rows: list[tuple[str, str, str]] = []
        try:
            with self._open() as store:
                if keys is None:
                    rows = store.execute("SELECT * FROM entries").fetchall()
                for key in keys or ():
                    rows += store.execute("SELECT * FROM entries WHERE key = ?", (key,))
        except sqlite3.Error as error:
            self._failed(error)
        return {key: json.loads(body) for key, mark, body in rows if mark == digest([key, body])}

    def write(self, values: Mapping[str, Any]) -> None:
        """Keep values."""
        if self.path is None or not values:
            return
        bodies = {key: json.dumps(value) for key, value in values.items()}
        rows = [(key, digest([key, body]), body) for key, body in bodies.items()]
        for _ in range(2):  # the second time without the damaged file
            try:
                self.path.parent.mkdir(exist_ok=True)
                with self._open() as store:
                    store.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, mark TEXT, body TEXT)")
                    store.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", rows)
                    if self.most is not None:
                        newest = "SELECT rowid FROM entries ORDER BY rowid DESC LIMIT ?"
                        store.execute(f"DELETE FROM entries WHERE rowid NOT IN ({newest})", (self.most,))
                return
            except (OSError, sqlite3.Error) as error:
                if not self._failed(error):
                    return

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one block: committed and closed at its end."""
        store = sqlite3.connect(str(self.path), timeout=WAIT_S)
        try:
            with store:
                yield store
        finally:
            store.close()

    def _failed(self, error: Exception) -> bool:
        """Say so; whether the file was damaged, and has been removed."""
        logging.getLogger("whetstone.cache").info("%s cannot be used: %s", self.path, error)
        damaged = type(error) is sqlite3.DatabaseError
        if damaged and self.path is not None:
            self.path.unlink(missing_ok=True)
        return damaged
