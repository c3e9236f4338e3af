"""The fixed set of mutations, on the syntax tree of a file.

Left alone: docstrings, annotations (those with a name too), decorators (the card), defaults of parameters (they are
recipe values), messages of errors, and the index 0.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MASKS = {
    "mask", "scored", "in_loss", "on_policy", "replayed", "teacher_forced", "truncated", "inside", "counts", "used", "kept", "loss_share",
    "correct", "valid", "policy", "trained",
}  # fmt: skip
"""Names of what selects; a factor with such a name (or ending in `mask`), its inverse or a comparison is dropped."""
OPPOSITE = {
    "min": "max", "minimum": "maximum", "amin": "amax", "cummin": "cummax", "argmin": "argmax", "group_min": "group_max",
}  # fmt: skip
OPPOSITE |= {value: key for key, value in OPPOSITE.items()}
COMPARE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


@dataclass(frozen=True)
class Mutant:
    """One change to one file."""

    scope: str
    """Function (`grpo`) or method (`Siren.__call__`) that holds it; empty for module level."""
    line: int
    operator: str
    change: str
    """`before → after`, with `#2` after the second of equal ones; it names the mutant in survivors.yaml."""
    tree: ast.Module


def mutants(path: Path) -> list[Mutant]:
    """Every mutant of a file, in order of its lines."""
    tree = ast.parse(path.read_text())
    out, seen = [], Counter[str]()
    for place, scope in _places(tree):
        for operator, after in _changes(_at(tree, place)):
            before = _at(tree, place)
            changed = copy.deepcopy(tree)
            _put(changed, place, after)
            around = _around(tree, place)
            change = f"{scope}: {ast.unparse(_at(tree, around))} → {ast.unparse(_at(changed, around))}"
            seen[change] += 1
            if seen[change] > 1:
                change += f" #{seen[change]}"
            out.append(Mutant(scope, before.lineno, operator, change, ast.fix_missing_locations(changed)))
    return sorted(out, key=lambda m: m.line)


Place = tuple[tuple[str, int | None], ...]
SKIPPED = (ast.Raise, ast.Import, ast.ImportFrom, ast.arguments, ast.AnnAssign)


def _places(tree: ast.Module) -> Iterator[tuple[Place, str]]:
    """Paths to the expressions that may change, with the function that each is in."""

    def walk(node: ast.AST, place: Place, scope: tuple[str, ...], depth: int) -> Iterator[tuple[Place, str]]:
        if isinstance(node, ast.expr):
            yield place, ".".join(scope)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and depth < 2:
            scope, depth = (*scope, node.name), depth + (1 if isinstance(node, ast.ClassDef) else 2)
        for field, value in ast.iter_fields(node):
            if field in ("decorator_list", "returns", "annotation", "bases", "keywords") and isinstance(
                node, ast.FunctionDef | ast.ClassDef | ast.arg | ast.AnnAssign
            ):
                continue
            for number, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or (isinstance(child, SKIPPED) and not _assigned(child)):
                    continue
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                    continue
                if _is_zero_index(node, field, child) or _is_type(child):
                    continue
                yield from walk(child, (*place, (field, number)), scope, depth)

    yield from walk(tree, (), (), 0)


def _assigned(node: ast.AST) -> bool:
    return isinstance(node, ast.AnnAssign) and node.value is not None and not isinstance(node.value, ast.Call)


def _is_type(node: ast.AST) -> bool:
    """`Annotated[...]`: an annotation with a name, whose bounds are a recipe's, and which `swap.py` cannot put into a running process."""
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Annotated"


def _is_zero_index(parent: ast.AST, field: str, child: ast.AST) -> bool:
    return (
        isinstance(parent, ast.Subscript | ast.Slice)
        and field in ("slice", "lower")
        and isinstance(child, ast.Constant)
        and child.value == 0
    )


def _at(tree: ast.AST, place: Place) -> ast.expr:
    node = tree
    for field, number in place:
        node = getattr(node, field) if number is None else getattr(node, field)[number]
    return node  # type: ignore[return-value]


def _around(tree: ast.AST, place: Place) -> Place:
    """The place itself, or for a number the expression around it: a bare 0 → 1 tells a reader nothing."""
    while len(place) > 1 and not (
        isinstance(_at(tree, place), ast.BinOp | ast.Call | ast.Compare | ast.Subscript | ast.BoolOp | ast.IfExp)
        or (isinstance(_at(tree, place), ast.UnaryOp) and not isinstance(_at(tree, place).operand, ast.Constant))
    ):
        if not isinstance(_at(tree, place[:-1]), ast.expr | ast.keyword | ast.Slice):
            return place
        place = place[:-1]
    return place


def _put(tree: ast.AST, place: Place, new: ast.expr) -> None:
    parent = _at(tree, place[:-1])
    field, number = place[-1]
    if number is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[number] = new


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """(operator, what stands there instead)."""
    match node:
        case ast.UnaryOp(ast.USub(), operand):
            yield "sign", operand
        case ast.Constant(value) if type(value) is int:
            yield "plus one", ast.Constant(value + 1)
            yield "minus one", ast.Constant(value - 1)
        case ast.BinOp(left, ast.Add(), right):
            yield "sign", ast.BinOp(left, ast.Sub(), right)
        case ast.BinOp(left, ast.Sub() | ast.Div(), right):
            yield "operands", ast.BinOp(right, node.op, left)
        case ast.BinOp(left, ast.Mult(), right):
            yield from (("mask", kept) for kept, gone in ((left, right), (right, left)) if _selects(gone))
        case ast.BinOp(left, ast.BitAnd(), right):
            yield "logic", ast.BinOp(left, ast.BitOr(), right)
            yield from (("mask", kept) for kept, gone in ((left, right), (right, left)) if _selects(gone))
        case ast.BinOp(left, ast.BitOr(), right):
            yield "logic", ast.BinOp(left, ast.BitAnd(), right)
        case ast.BoolOp(op, values):
            yield "logic", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.Compare(left, [op], [right]) if type(op) in COMPARE and not _tolerance(right):
            yield "compare", ast.Compare(left, [COMPARE[type(op)]()], [right])
        case ast.Call():
            yield from _calls(node)


def _tolerance(node: ast.expr) -> bool:
    """Whether it is a tolerance, like 1e-8: nothing is ever equal to it, so < and <= are the same."""
    return isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value < 1e-3


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called == "detach" and isinstance(node.func, ast.Attribute):
        yield "detach", node.func.value
    if called in OPPOSITE:
        func = copy.deepcopy(node.func)
        if isinstance(func, ast.Attribute):
            func.attr = OPPOSITE[called]
        else:
            func = ast.Name(OPPOSITE[called], ast.Load())
        yield "min/max", ast.Call(func, node.args, node.keywords)
    if called == "clamp":
        if len(node.args) == 2:
            yield "bounds", ast.Call(node.func, node.args[::-1], node.keywords)
        swap = {"min": "max", "max": "min"}
        if node.keywords:
            keywords = [ast.keyword(swap.get(k.arg or "", k.arg), k.value) for k in node.keywords]
            yield "bounds", ast.Call(node.func, node.args, keywords)
    for number, word in enumerate(node.keywords):
        if word.arg in ("ddof", "correction") and isinstance(word.value, ast.Constant):
            keywords = list(node.keywords)
            keywords[number] = ast.keyword(word.arg, ast.Constant(1 - int(word.value.value)))
            yield "ddof", ast.Call(node.func, node.args, keywords)


def _selects(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return True
    if isinstance(node, ast.Compare):
        return True
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in MASKS or name.endswith("mask")
