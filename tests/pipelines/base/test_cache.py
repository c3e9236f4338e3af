"""A file of values that several processes share, and that may be damaged."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.base.cache import Cache

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), values, max_size=4), max_size=3
    )
)
def test_it_holds_what_was_written_last(writes):
    with tempfile.TemporaryDirectory() as folder:
        expected = {}
        for each in writes:
            Cache(Path(folder) / "in" / "c.sqlite").write(each)
            expected |= each
        cache = Cache(Path(folder) / "in" / "c.sqlite")
        assert cache.read() == expected
        assert cache.read([*expected, "another"]) == expected
        assert cache.read([]) == {}


def test_the_oldest_are_dropped(tmp_path):
    cache = Cache(tmp_path / "c.sqlite", most=3)
    for number in range(5):
        cache.write({str(number): number})
    cache.write({"3": "again"})
    assert cache.read() == {"2": 2, "3": "again", "4": 4}


@pytest.mark.parametrize("text", ["", "no database", "SQLite format 3\0" + "x" * 5000])
def test_a_damaged_file_is_empty_and_written_again(tmp_path, text):
    cache = Cache(tmp_path / "c.sqlite")
    cache.path.write_text(text)
    assert cache.read() == {} == cache.read(["a"])
    cache.path.write_text(text)
    cache.write({"a": 1})
    assert cache.read() == {"a": 1}


def test_a_changed_entry_is_not_known(tmp_path):
    cache = Cache(tmp_path / "c.sqlite")
    cache.write({"a": 1, "b": 2})
    with contextlib.closing(sqlite3.connect(cache.path)) as store, store:
        store.execute("UPDATE entries SET body = '3' WHERE key = 'a'")
    assert cache.read() == {"b": 2}


def test_what_cannot_be_written_is_not_kept(tmp_path):
    Cache(None).write({"a": 1})
    assert Cache(None).read() == {}
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "c.sqlite", tmp_path / "none" / "none" / "c.sqlite", tmp_path):
        Cache(path).write({"a": 1})
        assert Cache(path).read() == {}


WRITER = """
import sys
from pathlib import Path
from pipelines.base.cache import Cache
who, rounds = sys.argv[2], int(sys.argv[3])
for number in range(rounds):
    Cache(Path(sys.argv[1])).write({f"{who}{number}.{i}": [who, number] for i in range(3)})
    print(number, flush=True)
"""


def start(path, who, rounds):
    command = [sys.executable, "-c", WRITER, str(path), who, str(rounds)]
    return subprocess.Popen(command, cwd=toys.ROOT, stdout=subprocess.PIPE, text=True)


def test_two_processes_at_once_and_one_is_killed(tmp_path):
    path = tmp_path / "c.sqlite"
    with start(path, "a", 20) as first, start(path, "b", 20) as second, start(path, "k", 100_000) as killed:
        for _ in range(3):
            killed.stdout.readline()
        os.kill(killed.pid, signal.SIGKILL)
        assert first.wait() == second.wait() == 0
    known = Cache(path).read()
    for who in "ab":
        assert [known[f"{who}{number}.{i}"] for number in range(20) for i in range(3)] == [
            [who, n] for n in range(20) for _ in range(3)
        ]
    rounds = {key.split(".")[0] for key in known if key[0] == "k"}
    assert len(rounds) >= 3 and all(f"{each}.{i}" in known for each in rounds for i in range(3)), (
        "a write is whole or has not happened"
    )
