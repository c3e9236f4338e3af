"""Scripts that start a trainer, read without running them: what they assign, and the words of the command."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.base.errors import UserError

ASSIGNMENT = re.compile(r"\s*(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)", re.S)
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^}]*))?\})")
ARITHMETIC = re.compile(r"\$\(\(([^()$]*(?:\([^()$]*\)[^()$]*)*)\)\)")
OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
MOST = 200_000
"""Characters of a script."""
LARGEST = 10**15
"""No result of arithmetic is larger."""
END = re.compile(r"\d*>|&|\||;|<$|<<|\$\{?[@*]")
"""What a word begins with that is none of the command's own: a redirect, a pipe, the next command, arguments of the script."""


def read(path: Path) -> str:
    """The text of a script.

    Raises:
        UserError: it cannot be read, or is too long.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(
            path, f"cannot be read ({getattr(error, 'strerror', None) or error})", "Name another file."
        ) from None
    if len(text) > MOST:
        raise UserError(path, f"{len(text)} characters; that is no script of a trainer", "Give its overrides alone.")
    return text


def commands(text: str, where: str) -> list[list[str]]:
    """The words of each command, with the script's own variables and integer arithmetic filled in.

    Nothing is run: what only a shell knows stays as it is written, and `$HOME` becomes `~`.

    Raises:
        UserError: a line has a quote that is not closed.

    >>> commands("n=$((2 * 4))\\npython3 -m verl.trainer.main_ppo \\\\\\n  data.train_batch_size=$n x=${Y:-3} # why", "run.sh")
    [['python3', '-m', 'verl.trainer.main_ppo', 'data.train_batch_size=8', 'x=3']]
    """
    known = {"HOME": "~"}
    found_commands = []
    for line in _lines(text):
        match = ASSIGNMENT.fullmatch(line)
        try:
            words = shlex.split(filled(match[2] if match else line, known), comments=True)
        except ValueError as error:
            raise UserError(where, f"{line.strip()[:60]!r} cannot be read ({error})", "Close the quote.") from None
        if match and len(words) <= 1:
            known[match[1]] = words[0] if words else ""
        elif words:
            found_commands.append(words)
    return found_commands


def of_one(words: list[str]) -> list[str]:
    """The words of the first command of a line.

    >>> of_one(["--beta", "0.1", "2>&1", "|", "tee", "log"]), of_one(["beta=0.1;", "ls"])
    (['--beta', '0.1'], ['beta=0.1'])
    """
    for place, word in enumerate(words):
        if END.match(word):
            return words[:place]
        if word.endswith(";"):
            return [*words[:place], word.removesuffix(";")]
    return words


def _lines(text: str) -> list[str]:
    """Logical lines: a backslash at the end goes on, and so does a quote that is not closed; lines that are comments are left out."""
    lines: list[str] = []
    open_quote = False
    for line in re.sub(r"[ \t]*\\\r?\n", " ", text).splitlines():
        if open_quote:
            lines[-1] += "\n" + line
        elif line.strip() and not line.lstrip().startswith("#"):
            lines.append(line)
        else:
            continue
        open_quote = _unclosed(lines[-1])
    return lines


def _unclosed(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False


def filled(text: str, known: dict[str, str]) -> str:
    """Text with the variables that are known, defaults of others, and integer arithmetic."""
    text = VARIABLE.sub(lambda m: known.get(m[1] or m[2], m[3] if m[3] is not None else m[0]), text)
    return ARITHMETIC.sub(lambda m: _result(m[1], known, m[0]), text)


def _result(formula: str, known: dict[str, str], otherwise: str) -> str:
    try:
        tree = ast.parse(formula.strip(), mode="eval")
        return str(_value(tree.body, known))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return otherwise


def _value(node: ast.AST, known: dict[str, str]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        result = node.value
    elif isinstance(node, ast.Name):
        result = int(known.get(node.id, ""))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        result = OPERATORS[type(node.op)](_value(node.left, known), _value(node.right, known))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        result = -_value(node.operand, known)
    else:
        raise ValueError("not integer arithmetic")
    if abs(result) > LARGEST:
        raise ValueError("too large")
    return result
