"""Formulas as nested tuples, and ways through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Formula = tuple[Any, ...]
"""A kind, then what it is made of: numbers, names, formulas, lists of them."""


def free(formula: Formula) -> frozenset[str]:
    """The letters of a formula that stand for anything."""
    if formula[0] == "sym":
        return frozenset({formula[1]})
    inner: frozenset[str] = frozenset().union(*(free(part) for part in parts(formula)))
    return inner - {formula[1][1]} if formula[0] in ("sum", "prod") else inner


def parts(formula: Formula) -> list[Formula]:
    """The formulas that a formula is made of."""
    listed: list[Formula] = []
    for part in formula[1:]:
        if isinstance(part, tuple):
            listed.append(part)
        elif isinstance(part, list):
            entries = [entry for row in part for entry in (row if isinstance(row, list) else [row])]
            listed += [entry for entry in entries if isinstance(entry, tuple)]
    return listed


def has(formula: Formula, part: Formula) -> bool:
    """Whether a formula holds another one."""
    return formula == part or any(has(inner, part) for inner in parts(formula))


def mapped(formula: Any, change: Callable[[Formula], Formula | None]) -> Any:
    """The formula, with what `change` gives in the place of every part for which it gives something."""
    if isinstance(formula, list):
        return [mapped(part, change) for part in formula]
    if not isinstance(formula, tuple):
        return formula
    other = change(formula)
    return tuple(mapped(part, change) for part in formula) if other is None else other
