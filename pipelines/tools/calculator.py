"""Arithmetic: exact integers and fractions, + - * / // % ** and brackets, with bounds on size and depth."""

from __future__ import annotations

import ast
import re
from fractions import Fraction

from pipelines.base.expressions import depth
from pipelines.tools import Tool, ToolError, function_schema

MOST_CHARACTERS = 300
MOST_BRACKETS = 30
MOST_DIGITS = 100
_ALLOWED = re.compile(r"[\d.+\-*/%()\s]*")
SCHEMA = function_schema(
    "calculator", "Evaluate an arithmetic expression.", expression={"type": "string", "description": "such as 12 * (3 + 4)"}
)  # fmt: skip


def evaluate(expression: str) -> Fraction:
    """The exact value.

    Raises:
        ToolError: it is no arithmetic, divides by zero, or is too long or too large.

    >>> evaluate("2 * (3 + 4) / 4"), evaluate("2 ** 10 % 1000")
    (Fraction(7, 2), Fraction(24, 1))
    """
    text = expression.replace("×", "*").replace("−", "-").strip()
    if len(text) > MOST_CHARACTERS or depth(text) > MOST_BRACKETS:
        raise ToolError("the expression is too long")
    if not text or not _ALLOWED.fullmatch(text):
        raise ToolError("not arithmetic: use digits, + - * / // % ** and brackets")
    try:
        return _value(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError("not arithmetic: use digits, + - * / // % ** and brackets") from None


def shown(value: Fraction) -> str:
    """An integer as it is, other numbers with up to twelve significant digits.

    >>> shown(Fraction(14, 2)), shown(Fraction(1, 3))
    ('7', '0.333333333333')
    """
    if value.denominator == 1:
        return str(value.numerator)
    try:
        return f"{float(value):.12g}"
    except OverflowError:
        raise ToolError("the result is too large") from None


def calculate(expression: str) -> str:
    """The value as text.

    Raises:
        ToolError: as `evaluate`.
    """
    return shown(evaluate(expression))


def tools() -> list[Tool]:
    """The calculator."""
    return [Tool(SCHEMA, calculate)]


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_value(node.operand) if isinstance(node.op, ast.USub) else _value(node.operand)
    if not isinstance(node, ast.BinOp):
        raise ValueError("no arithmetic")
    first, second = _value(node.left), _value(node.right)
    if isinstance(node.op, ast.Pow):
        return _power(first, second)
    operation = OPERATIONS.get(type(node.op))
    if operation is None:
        raise ValueError("no arithmetic")
    return _bounded(operation(first, second))


OPERATIONS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: lambda a, b: a % b,
}


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    """A whole power whose size is known before it is computed."""
    if exponent.denominator != 1 or abs(exponent) > MOST_DIGITS * 4:
        raise ToolError("the exponent must be a whole number of moderate size")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(int(exponent)) > MOST_DIGITS * 4:
        raise ToolError("the result is too large")
    return _bounded(Fraction(base ** int(exponent)))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_DIGITS * 4:
        raise ToolError("the result is too large")
    return value
