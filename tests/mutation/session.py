"""Tests as functions: collected once by pytest, run again and again in this process."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.tmpdir import tmppath_result_key

ROOT = Path(__file__).resolve().parents[2]
METHODS = tuple(str(ROOT / "pipelines" / name) for name in ("rlvr", "papers"))
"""Folders whose functions are mutated."""
Touched = set[tuple[str, str]]
"""(file, function or method) pairs that a test runs."""


class Check:
    """One test: how long it takes (CPU seconds) and what it touches."""

    def __init__(self, item: pytest.Item) -> None:
        self.item, self.seconds, self.touched = item, 0.0, set[tuple[str, str]]()
        dtest = getattr(item, "dtest", None)
        self._globs = dict(dtest.globs) if dtest is not None else {}

    def fails(self, limit: float) -> str:
        """Why it fails, empty where it passes; what runs longer than the limit (s) has failed."""
        item: Any = self.item
        if self._globs:
            item.dtest.globs = dict(self._globs)
        if hasattr(item, "_initrequest"):
            item._initrequest()
        item.stash[tmppath_result_key] = {}
        stack = item.session._setupstate
        stack.teardown_exact(_Parents(item))
        entered = False
        try:
            with _alarm(limit):
                stack.setup(item)
                entered = True
                item.runtest()
        except pytest.skip.Exception:
            return ""
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return type(error).__name__
        finally:
            stack.teardown_exact(_Parents(item) if entered else None)
        return ""

    def measure(self, limit: float) -> str:
        """As `fails`, and note the time and the functions of method files that it calls."""

        def note(frame: Any, event: str, _: Any) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(METHODS):
                self.touched.add((code.co_filename, code.co_qualname.split(".<locals>")[0]))

        began = time.process_time()  # a busy machine must not decide which tests are too long
        sys.setprofile(note)
        try:
            return self.fails(limit)
        finally:
            sys.setprofile(None)
            self.seconds = time.process_time() - began


class _Parents:
    """Stands for "some test in the same file": what that one needs stays set up."""

    def __init__(self, item: pytest.Item) -> None:
        self.chain = item.listchain()[:-1]

    def listchain(self) -> list[Any]:
        return self.chain


class TooLong(BaseException):
    """A test ran past its limit."""


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again and again: a library may swallow the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def with_checks(work: Any, places: Sequence[str], quick: bool) -> int:
    """Collect the tests of some places and call `work` with them; quick leaves out those that need a trained model.

    Returns:
        pytest's exit code, or what `work` returned where that is not 0.
    """

    class Plugin:
        code = 0

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtestloop(self, session: pytest.Session) -> bool:
            unwanted = {"caplog"} | (
                {"start", "lake", "home"} if quick else set()
            )  # caplog lives by hooks that do not run here
            items = [i for i in session.items if not unwanted & set(getattr(i, "fixturenames", ()))]
            self.code = work([Check(item) for item in items])
            return True

    plugin = Plugin()
    arguments = [
        "-qq",
        "-m",
        "not slow" if quick else "not long",
        "-p",
        "no:cacheprovider",
        "-s",
        "--rootdir",
        str(ROOT),
    ]
    done = pytest.main([*arguments, "-c", str(ROOT / "pyproject.toml"), *places], plugins=[plugin])
    return plugin.code or int(done)
