"""A module's code without comments, and what it imports."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator

from pipelines.base.project import syntax_tree


def parse(text: bytes, package: str) -> tuple[str, tuple[str, ...]]:
    try:
        tree = syntax_tree(text)
    except (SyntaxError, ValueError):
        return hashlib.sha256(text).hexdigest(), ()
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(imports(tree, package))


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")[: len(package.split(".")) - node.level + 1] if package else []
                base = ".".join([*parts, *([node.module] if node.module else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value
