"""Calls against lists of allowed values, by the rules of BFCL's AST checker.

The rules are those of ShishirPatil/gorilla at 6ea5797 (`bfcl_eval/eval_checker/ast_eval/ast_checker.py`, for Python): the names and the
required parameters must be there and no unknown ones; a value has the type that the function's schema names, an integer will do for a
float, or the type of the allowed values; texts are equal without case, blanks and `,./-_*^`; a parameter whose allowed values hold "" may
be missing; the calls of one answer have no order.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

Call = tuple[str, dict[str, Any]]
Allowed = dict[str, dict[str, list[Any]]]
"""Name of one function → parameter → allowed values."""
TYPES: dict[str, type] = {
    "string": str, "integer": int, "float": float, "boolean": bool, "array": list, "tuple": list, "dict": dict, "any": str,
}  # fmt: skip
NESTED = ("array", "tuple")
MOST_CHARS = 100_000
"""A longer answer is no list of calls."""
_UNREAD = re.compile(r"[ ,./\-_*^]")
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def match(functions: list[dict[str, Any]], calls: Sequence[Call], allowed: Sequence[Allowed]) -> bool:
    """Whether the calls are as many as are wanted, and each wanted one takes the first of the rest that fits it.

    Args:
        functions: schemas of all functions that were offered.
        allowed: of each wanted call.
    """
    if len(calls) != len(allowed):
        return False
    schemas = {function["name"]: function for function in functions}
    left = list(calls)
    for wanted in allowed:
        ((name, values),) = wanted.items()
        place = next((at for at, call in enumerate(left) if fits(schemas[name], call, values)), None)
        if place is None:
            return False
        del left[place]
    return True


def fits(function: dict[str, Any], call: Call, allowed: dict[str, list[Any]]) -> bool:
    """Whether a call is one of a function with these allowed values."""
    name, arguments = call
    schema, required = function["parameters"]["properties"], function["parameters"].get("required", [])
    if name != function["name"] or any(parameter not in arguments for parameter in required):
        return False
    if any(parameter not in schema or parameter not in allowed for parameter in arguments):
        return False
    if not all(_value_fits(schema[parameter], value, allowed[parameter]) for parameter, value in arguments.items()):
        return False
    return all(parameter in arguments or "" in values for parameter, values in allowed.items())


def _value_fits(schema: dict[str, Any], value: Any, allowed: list[Any]) -> bool:
    kind: Any = TYPES[schema["type"]]
    nested = TYPES[schema["items"]["type"]] if schema["type"] in NESTED else None
    if schema["type"] == "float" and type(value) is int:
        value = float(value)
    if schema["type"] == "tuple" and type(value) is tuple:
        value = list(value)
    typed = _typed(value, allowed, kind, nested)
    if typed is None:
        return False
    if typed == "variable":
        return value in allowed
    if kind is dict:
        return _dict_fits(value, allowed)
    if kind is list and nested is dict:
        return any(
            len(value) == len(option)
            and all(_dict_fits(item, [other]) for item, other in zip(value, option, strict=True))
            for option in allowed
        )
    if kind is str:
        return plain(value) in [plain(option) for option in allowed if isinstance(option, str)]
    if kind is list:
        return [plain(item) for item in value] in [[plain(item) for item in option] for option in allowed]
    return value in allowed


def _typed(value: Any, allowed: list[Any], kind: Any, nested: Any) -> str | None:
    """`value`, `variable` where it has the type of the allowed values instead of the schema's, None where it has neither."""
    meant = next((type(option) for option in allowed if option != ""), None)
    variable = meant is not None and meant is not kind
    if type(value) is not kind:
        return "variable" if meant is not None and type(value) is meant else None
    if nested is None:
        return "variable" if variable else "value"
    for option in allowed:
        if not isinstance(option, list) or all(_typed(item, option, nested, None) for item in value):
            return "variable" if variable else "value"
    return None


def _dict_fits(value: Any, allowed: list[Any]) -> bool:
    """Whether an object is one of those allowed, whose keys have lists of allowed values themselves."""
    return any(
        option != ""
        and isinstance(value, dict)
        and all(key in option and plain(item) in [plain(each) for each in option[key]] for key, item in value.items())
        and all(key in value or "" in each for key, each in option.items())
        for option in allowed
    )


def plain(value: Any) -> Any:
    """A text as texts are compared; anything else as it is.

    >>> plain("April 1, 2024"), plain("it's"), plain(3)
    ('april12024', 'it"s', 3)
    """
    return _UNREAD.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def python_calls(text: str) -> list[Call]:
    """The calls in BFCL's text format, `[name(parameter=value, ...), ...]`, with nothing around them but fences and blanks.

    A name is a text, a call without keywords or an index is its own source, and positional arguments are dropped, as in the released code.

    Raises:
        ValueError: it is no such list.

    >>> python_calls("[maps.route(start='A', stops=[1, -2]), stop()]")
    [('maps.route', {'start': 'A', 'stops': [1, -2]}), ('stop', {})]
    """
    text = text.strip("`\n ")
    text = f"{'' if text.startswith('[') else '['}{text}{'' if text.endswith(']') else ']'}".strip().strip("'")
    if len(text) > MOST_CHARS:
        raise ValueError(f"over {MOST_CHARS} characters")
    try:
        body = ast.parse(text, mode="eval").body
        elements = [body] if isinstance(body, ast.Call) else getattr(body, "elts", None)
        if elements is None or not all(isinstance(element, ast.Call) for element in elements):
            raise ValueError("no list of calls")
        return [_call(element) for element in elements]
    except (SyntaxError, RecursionError, MemoryError, OverflowError, TypeError) as error:
        raise ValueError(f"no list of calls ({type(error).__name__})") from None


def _call(node: ast.Call) -> Call:
    parts: list[str] = []
    inner: ast.expr = node.func
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        parts.append(inner.id)
    return ".".join(reversed(parts)), {str(word.arg): _value(word.value) for word in node.keywords}


def _value(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Constant):
        return "..." if node.value is Ellipsis else node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant) and _is_number(node.operand.value):
        return -node.operand.value  # type: ignore[operator]
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        return {_value(key): _value(item) for key, item in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        first, second = _value(node.left), _value(node.right)
        if _is_number(first) and _is_number(second) and (second or not isinstance(node.op, ast.Div)):
            return _ARITHMETIC[type(node.op)](first, second)
    if isinstance(node, ast.Call) and node.keywords:
        name, arguments = _call(node)
        return {name: arguments}
    if isinstance(node, ast.Call | ast.Subscript):
        return ast.unparse(node)
    raise ValueError(f"a value that is none: {ast.unparse(node)[:50] if node is not None else '**'}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
