"""Commands of a shell made to get out, to stay or to stall: none does, each ends in its time, and the next episode knows nothing of it."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import psutil
import pytest
import yaml

from pipelines.sandbox import pool, shell

COMMANDS = yaml.safe_load((Path(__file__).parent / "shells.yaml").read_text())
FILES = {"a.txt": "one\n"}
pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(bool(shell.trouble()), reason=shell.trouble()),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("outside")
    (root / "file").write_text("secret")
    (root / "folder").mkdir()
    for path in (root / "folder", root, *root.parents[:2]):
        os.chmod(path, 0o777)
    about = (root / "file").stat()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield {"file": root / "file", "folder": root / "folder", "port": server.getsockname()[1], "pid": os.getpid()}
        with pytest.raises(BlockingIOError):
            server.accept()
    assert list((root / "folder").iterdir()) == []
    assert (root / "file").stat().st_mode == about.st_mode and (root / "file").read_text() == "secret"


@pytest.fixture(autouse=True, scope="module")
def one_sandbox():
    """All in one process of the sandbox, so that one could reach the next."""
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    pool.configure(workers=1)
    yield
    pool.configure(workers=0)
    pool._settings.clear()
    until = time.monotonic() + 5
    while left := {p.pid for p in psutil.Process().children(recursive=True)} - before:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def ran(text, files=None, seconds=1):
    [result] = shell.run(shell.files_of(FILES) if files is None else files, [shell.Command(text, seconds=seconds)])
    return result


@pytest.mark.parametrize("entry", COMMANDS, ids=[entry["name"] for entry in COMMANDS])
def test_no_command_gets_out(entry, places):
    command = entry["command"]
    for name, value in places.items():
        command = command.replace("{" + name + "}", str(value))
    began, seconds = time.monotonic(), entry.get("seconds", 1)
    result = ran(command, seconds=seconds)
    assert time.monotonic() - began < 5 + seconds
    assert (result.ended or "itself") in entry.get("is", ["itself"]), result
    assert "ESCAPED" not in result.output, result.output
    if "then" in entry:
        after = ran(entry["then"], {})
        assert "ESCAPED" not in after.output and not after.ended, after
    else:
        again = ran("chmod 755 .; true", result.files)  # what it left can be laid out, with any modes and names
        assert again.code == 0 and again.files == result.files
    assert ran("cat a.txt; ls -A /tmp | wc -l").output == "one\n0\n"


def test_a_trick_that_works_would_be_noticed():
    assert "ESCAPED" in ran("cat a.txt && echo ESCAPED").output


def test_the_suite_is_large_enough():
    names = [entry["name"] for entry in COMMANDS]
    assert len(set(names)) == len(names) >= 70
