"""Parsing from several threads."""

from __future__ import annotations

import ast
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipelines.base import project


def test_one_thread_parses_at_a_time(monkeypatch):
    """Seen in a sweep of two jobs: a finaliser let another thread in, and the count of both was off."""
    inside, most = [], []

    def parse(text):
        inside.append(text)
        most.append(len(inside))
        time.sleep(0.005)
        inside.pop()
        return text

    monkeypatch.setattr(project.ast, "parse", parse)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(project.syntax_tree, ["x = 1"] * 20)) == ["x = 1"] * 20
    assert max(most) == 1


def test_a_parse_that_another_library_disturbed_is_tried_again(monkeypatch):
    results = [SystemError("AST constructor recursion depth mismatch (before=102, after=98)"), ast.parse("x = 1")]

    def parse(_):
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(project.ast, "parse", parse)
    assert project.syntax_tree("x = 1").body and not results


@pytest.mark.parametrize("text", ["def", "x = \0"])
def test_what_is_no_python_is_said_at_once(text):
    with pytest.raises((SyntaxError, ValueError)):
        project.syntax_tree(text)
