"""A file has at most 500 lines, and a function at most 60 after its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scripts.lint.tree import PACKAGES, ROOT, sources

FILE_LINES, FUNCTION_LINES = 500, 60
LONG_FILES: dict[str, str] = {}
"""File → why it may be longer."""
LONG_FUNCTIONS: dict[str, str] = {}
"""`file::function` → why it may be longer."""


def too_long(name: str, source: str) -> Iterator[str]:
    """What is too long in one file, without the named exceptions."""
    count = len(source.splitlines())
    if count > FILE_LINES and name not in LONG_FILES:
        yield f"{name}: {count} lines, more than {FILE_LINES}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and f"{name}::{node.name}" not in LONG_FUNCTIONS:
            start = node.body[0].end_lineno if ast.get_docstring(node) is not None else node.lineno
            if (lines := (node.end_lineno or 0) - (start or 0)) > FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {lines} lines, more than {FUNCTION_LINES}"


def check() -> Iterator[str]:
    """Every file of the packages."""
    for path in sources(PACKAGES):
        yield from too_long(str(path.relative_to(ROOT)), path.read_text())
