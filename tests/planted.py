"""Planted bugs, cheaply: one copy of the tree a session, one process that has imported the heavy libraries and forks for each.

A bug is (file, correct text, text planted in its place, tests). The tests are named one by one (`file::test`), because the
time of a planted bug is the time of what runs before it is noticed.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
Bug = tuple[str, str, str, list[str]]
FOLDERS = ("pipelines", "evaluation", "tasks", "flows", "benchmarks", "recipes", "scripts", "tests")
FILES = ("pyproject.toml", "prefect.yaml", "whetstone_launcher.py")
HEAVY = (
    "torch", "torch.distributed", "transformers", "transformers.models.llama.modeling_llama", "tokenizers", "safetensors.torch",
    "scipy.stats", "pydantic", "hypothesis.strategies", "xxhash", "yaml", "mlflow", "reasoning_gym", "lm_eval.api.task",
)  # fmt: skip
"""Imported once, before any fork; nothing of ours, which would then be without the bug."""


def check_line(bug: Bug) -> None:
    """The text to replace is there once, and the tests exist."""
    path, correct, planted, tests = bug
    assert (ROOT / path).read_text().count(correct) == 1 and correct != planted
    for test in tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists(), test
        name = name.split("[")[0].split(".")[-1]
        assert not name or f"def {name}(" in (ROOT / file).read_text(), test


def plant_and_test(bug: str, path: str, correct: str, planted: str, tests: Sequence[str], *_: object) -> None:
    """Run the tests with the bug in the copy of the tree; one of them must fail, and not for want of a module."""
    copy = tree() / path
    text = copy.read_text()
    _prepare(tests)
    try:
        _write(copy, text.replace(correct, planted))
        code, said = run_tests(tests)
    finally:
        _write(copy, text)
    if code == 0 and (skipped := re.search(r"^SKIPPED \[\d+\] (.*)$", said, re.M)) and " passed" not in said:
        pytest.skip(skipped[1])  # what the bug breaks does not exist on this machine
    assert code == 1, f"{bug} was not noticed:\n{said[-1500:]}"
    assert "failed" in said or "error" in said
    assert "ModuleNotFoundError" not in said, said[-3000:]


def check_clean(bugs: Mapping[str, Bug]) -> None:
    """Without a bug the tests pass in the copy: what fails with one fails because of it."""
    tests = sorted({test for *_, names in bugs.values() for test in names})
    _prepare(tests)
    code, said = run_tests(tests)
    assert code == 0, said[-3000:]


@cache
def tree() -> Path:
    """The copy that bugs are planted in."""
    folder = Path(tempfile.mkdtemp(prefix="planted-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored, copy_function=_link)
    for name in FILES:
        _link(str(ROOT / name), str(folder / name))
    return folder


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target


def _write(path: Path, text: str) -> None:
    """A new file, never through the link; and no compiled file of an equal size and second."""
    path.unlink()
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def run_tests(tests: Sequence[str]) -> tuple[int, str]:
    """pytest's exit code and output for some tests of the copy, until the first fails."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps({"tests": list(tests), "log": str(tree() / "log")}) + "\n")
    server.stdin.flush()
    code = json.loads(server.stdout.readline())
    return code, (tree() / "log").read_text()


def _prepare(tests: Sequence[str]) -> None:
    """Make what the tests share, before the bug is there."""
    if any(re.search(r"def test_\w+\([^)]*\bstart\b", (tree() / test.split("::")[0]).read_text()) for test in tests):
        _start()


@cache
def _start() -> None:
    """What the fixture `start` gives, made once, without any bug: every fork would train it again."""
    script = "import sys, pathlib, toys; (p := pathlib.Path(sys.argv[1])).mkdir(); toys.start(p)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree()), str(tree() / "tests")])}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tree() / "start")], cwd=tree(), env=environment, check=False
    )
    assert done.returncode == 0


@cache
def _server() -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree()), str(tree() / "tests")])}
    environment["WHETSTONE_TESTS_START"] = str(tree() / "start")
    server = subprocess.Popen(
        [sys.executable, str(tree() / "tests" / "planted.py")],
        cwd=tree(),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.terminate)
    return server


def serve() -> None:
    """Import what is heavy once; for every line of the standard input run pytest in a fork and say its exit code."""
    import importlib

    os.environ |= {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "TOKENIZERS_PARALLELISM": "false"}
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

    for name in HEAVY:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number in (1, 2):
                os.dup2(log, number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            code = 3
            try:
                code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--tb=short", *request["tests"]]))
            finally:
                sys.stdout.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
