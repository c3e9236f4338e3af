"""What was read from source files is remembered, and never believed where it could be wrong."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys

import pytest
import toys

from tasks.keys import parsed, syntax

CODE = """
from pathlib import Path
from tasks.keys import source, syntax
calls = []
parse = syntax.syntax_tree
syntax.syntax_tree = lambda text: calls.append(text) or parse(text)
print(source.of_stage("pipelines.sft", source.Reads({})) == source.of_stage("pipelines.sft", source.Reads({})), len(calls))
"""
DAMAGES = {
    "one digit": f"UPDATE entries SET body = '[\"{'0' * 64}\", []]'",
    "another digest": f"UPDATE entries SET mark = '{'0' * 64}'",
}


def in_a_process(home):
    code = CODE + "print(sorted(source.reach(['pipelines.sft.__main__']).items()))"
    env = {"PATH": "/usr/bin:/bin", "WHETSTONE_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=toys.ROOT, env=env, check=True
    )
    told, digests = done.stdout.splitlines()
    return int(told.split()[1]), digests


@pytest.mark.slow
def test_a_second_process_parses_nothing_and_says_the_same(home):
    home.mkdir(exist_ok=True)
    first, digests = in_a_process(home)
    assert first > 20
    assert in_a_process(home) == (0, digests)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", ["one digit", *(pytest.param(d, marks=pytest.mark.slow) for d in ("", "no database", "another digest"))]
)
def test_a_damaged_file_is_as_good_as_none(home, damage):
    home.mkdir(exist_ok=True)
    first, digests = in_a_process(home)
    (file,) = (home / ".checked").glob("code-*.sqlite")
    if damage in DAMAGES:
        with contextlib.closing(sqlite3.connect(file)) as store, store:
            assert store.execute(DAMAGES[damage]).rowcount > 0
    else:
        file.write_text(damage)
    assert in_a_process(home) == (first, digests)
    assert in_a_process(home) == (0, digests), "and it is written again"


def test_another_reader_is_another_file(monkeypatch, home):
    here = parsed._file()
    parsed._version.cache_clear()
    monkeypatch.setattr(syntax, "imports", lambda tree, package: iter(()))
    try:
        assert parsed._file() != here
    finally:
        parsed._version.cache_clear()


@pytest.mark.slow
def test_no_project_folder_is_made(tmp_path):
    in_a_process(tmp_path / "none")
    assert not (tmp_path / "none").exists()
