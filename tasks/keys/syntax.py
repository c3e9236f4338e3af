"""A module's code without comments, what it imports, and what its single definitions use."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from pipelines.base.project import syntax_tree


def parse(text: bytes, package: str) -> tuple[str, tuple[str, ...]]:
    try:
        tree = syntax_tree(text)
    except (SyntaxError, ValueError):
        return hashlib.sha256(text).hexdigest(), ()
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(imports(tree, package))


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """The names of what a tree imports wherever it runs, so without imports for types."""
    for node in _run(tree):
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


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.stmt) and _is_idle(child)):
            yield from _run(child)


@dataclass
class Definition:
    """What a name at the top of a module stands for."""

    code: str = ""
    """Without comments; empty for imports, and for classes that only have fields."""
    uses: set[str] = field(default_factory=set)
    """Names in it, those of the module among them."""
    imports: list[str] = field(default_factory=list)


def definitions(text: bytes, package: str, sections: Collection[str]) -> dict[str, Definition]:
    """Name → definition of a module that parses; statements that define no name, and run whenever it is imported, are under "".

    Args:
        sections: classes of settings; their fields and validators are left out, because the settings are in keys as they resolve.
    """
    defined: dict[str, Definition] = {}
    for statement in syntax_tree(text).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                single: ast.stmt = ast.Import([alias])
                if isinstance(statement, ast.ImportFrom):
                    single = ast.ImportFrom(statement.module, [alias], statement.level)
                name = alias.asname or alias.name.partition(".")[0]
                defined.setdefault(name, Definition()).imports += imports(single, package)
            continue
        if _is_idle(statement):
            continue
        nodes: list[ast.AST] = [statement]
        if isinstance(statement, ast.ClassDef) and statement.name in sections:
            nodes = [*statement.bases, *(each for each in statement.body if not _is_declared(each))]
        code = "".join(ast.dump(each) for each in nodes if isinstance(each, ast.stmt))
        for name in _names(statement):
            entry = defined.setdefault(name, Definition())
            entry.code += code
            for node in nodes:
                entry.uses |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                entry.imports += imports(node, package)
    return defined


def _is_idle(statement: ast.stmt) -> bool:
    """Whether nothing of it runs: a text, or imports for types."""
    if isinstance(statement, ast.If):
        return isinstance(statement.test, ast.Name) and statement.test.id == "TYPE_CHECKING"
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_declared(statement: ast.stmt) -> bool:
    """Whether a statement in a class of settings declares or checks a field."""
    if isinstance(statement, ast.FunctionDef):
        return any("_validator" in ast.unparse(each) for each in statement.decorator_list)
    return isinstance(statement, ast.AnnAssign | ast.Pass) or _is_idle(statement)


def _names(statement: ast.stmt) -> list[str]:
    """The names that a statement defines at the top of its module; [""] where it defines none."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    named = [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [each.id for each in named if isinstance(each, ast.Name)] or [""]
