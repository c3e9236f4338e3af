"""Answers that a library would run as Python, read without running them, or let through as plain formulas only."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from fractions import Fraction

MOST_CHARACTERS = 500
MOST_BRACKETS = 30
FUNCTIONS = frozenset({"exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sqrt", "pi", "E"})
_FORMULA = re.compile(r"(?:\d{1,30}(?:\.\d{1,30})?|[A-Za-z]{1,10}|[-+*/()\s])*")
_NAME = re.compile(r"[A-Za-z]{1,10}")
_ARITHMETIC = re.compile(r"[\d+\-*/()\s]*")


def formula(text: str, names: Collection[str]) -> bool:
    """Whether a text is a formula of numbers, operators, known functions and the names: nothing that Python could misuse.

    >>> formula("-3*x**2/2 + sin(x) + C", ["x", "C"]), formula("x.real", ["x"]), formula("Integral(x, x)", ["x"])
    (True, False, False)
    """
    if len(text) > MOST_CHARACTERS or depth(text) > MOST_BRACKETS or not _FORMULA.fullmatch(text):
        return False
    return all(word in FUNCTIONS or word in names for word in _NAME.findall(text))


def literal(text: str) -> object:
    """The value of a Python literal; None where it is none.

    >>> literal("[[0, 1], ['a']]"), literal("open('x')")
    ([[0, 1], ['a']], None)
    """
    if len(text) > 20 * MOST_CHARACTERS or depth(text) > MOST_BRACKETS:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def arithmetic(text: str) -> tuple[Fraction, list[int]] | None:
    """The exact value of a sum of integers with + - * / and brackets, and the integers in it; None where it is none.

    >>> arithmetic("10*(8 - 5) - 6")
    (Fraction(24, 1), [10, 8, 5, 6])
    """
    if len(text) > MOST_CHARACTERS or depth(text) > MOST_BRACKETS or not _ARITHMETIC.fullmatch(text):
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval")
        constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        value = _value(tree.body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    constants.sort(key=lambda node: (node.lineno, node.col_offset))
    return value, [int(str(node.value)) for node in constants]


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_value(node.operand) if isinstance(node.op, ast.USub) else _value(node.operand)
    if isinstance(node, ast.BinOp):
        first, second = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return first + second
        if isinstance(node.op, ast.Sub):
            return first - second
        if isinstance(node.op, ast.Mult):
            return first * second
        if isinstance(node.op, ast.Div):
            return first / second
    raise ValueError("no arithmetic")


def depth(text: str, opening: str = "([{", closing: str = ")]}") -> int:
    """Levels of brackets, those in strings counted too.

    >>> depth("[(1), [2]]"), depth("((", "[{", "]}")
    (2, 0)
    """
    level = deepest = 0
    for character in text:
        if character in opening:
            level += 1
            deepest = max(deepest, level)
        elif character in closing:
            level -= 1
    return deepest
