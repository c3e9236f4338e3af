"""Programs made to cheat, to get out or to stall: none has success, on any level, and honest ones pass."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import psutil
import pytest
import yaml

from pipelines.sandbox import isolation, pool
from pipelines.verifiers import verify_many

pytestmark = pytest.mark.hostile

PROGRAMS = yaml.safe_load((Path(__file__).parent / "programs.yaml").read_text())
STATUSES: dict[str, list[str]] = {}
"""Level → what the programs came to: they must not differ."""
SQUARES = [[3, 9], [5, 25], [0, 0], [-4, 16]]
CHECK = "def check(candidate):\n" + "".join(f"    assert candidate({x}) == {y}\n" for x, y in SQUARES)


def row(program, places):
    code = program["code"]
    for name, value in places.items():
        code = code.replace("{" + name + "}", str(value))
    if code.startswith("REPEAT:"):
        _, what, count = code.split(":")
        code = f"x = {what * int(count)}1"
    squares = program.get("cases", SQUARES)
    info = {"entry_point": "f", "timeout_s": 1, "memory_mb": 256} | {
        "cases": {"cases": [{"args": [x], "expected": y} for x, y in squares]},
        "asserts": {"asserts": [f"assert f({x}) == {y}" for x, y in squares]},
        "check": {"test": program.get("test", CHECK)},
        "run": {"stdin": [{"input": str(x), "output": str(y)} for x, y in squares]},
    }[program["in"]]
    return ("python", code, "", info)


@pytest.fixture
def places(tmp_path):
    (tmp_path / "file").write_text("secret")
    os.chmod(tmp_path / "file", 0o644)
    folder = tmp_path / "folder"
    folder.mkdir()
    os.chmod(folder, 0o777)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield {"file": tmp_path / "file", "folder": folder, "port": server.getsockname()[1], "pid": os.getpid()}
        with pytest.raises(BlockingIOError):
            server.accept()
    assert list(folder.iterdir()) == []
    about = (tmp_path / "file").stat()
    assert about.st_mode & 0o777 == 0o644 and about.st_size == 6 and about.st_mtime > 0


@pytest.mark.slow
@pytest.mark.parametrize("level", ["namespaces", pytest.param("landlock", marks=pytest.mark.slow)])
def test_no_program_has_success(level, places, monkeypatch):
    if why := isolation.trouble(level):
        assert any(word in why for word in ("not installed", "denied", "not permitted", "no landlock")), why
        pytest.skip(why)
    monkeypatch.setattr(isolation, "best", lambda limits_only=False: level)
    pool.configure(workers=4)
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    try:
        verdicts = verify_many([row(program, places) for program in PROGRAMS])
        for program, verdict in zip(PROGRAMS, verdicts, strict=True):
            print(f"{program['name']:40} {verdict.status:12} {verdict.components}")
        wrong = {
            program["name"]: verdict
            for program, verdict in zip(PROGRAMS, verdicts, strict=True)
            if verdict.status not in program["is"]
        }
        assert not wrong
        STATUSES[level] = [verdict.status for verdict in verdicts]
        for other in STATUSES.values():
            for program, status, there in zip(PROGRAMS, STATUSES[level], other, strict=True):
                assert status == there or len(program["is"]) > 1, (program["name"], status, there)
    finally:
        pool.configure(workers=0)
        pool._settings.clear()
    until = time.monotonic() + 5
    while left := {p.pid for p in psutil.Process().children(recursive=True)} - before:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def test_the_suite_is_large_enough():
    names = [program["name"] for program in PROGRAMS]
    assert len(set(names)) == len(names)
    assert sum("correct" not in program["is"] for program in PROGRAMS) >= 60
