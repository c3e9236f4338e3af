"""What may stand in a row: strict JSON, text that can be written as UTF-8, plain values. Whatever else costs the row."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

MAX_DEPTH = 100
"""Lists and objects inside one another; Python's own limit is near 1,000 and depends on who calls."""
MAX_DIGITS = 4300
"""Digits of an integer; Python refuses to convert more."""
MAX_BITS = 14_284
"""Bits of an integer that has at most `MAX_DIGITS` digits."""
SAMPLE = 300
"""Characters of a row that the quarantine file shows."""
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.S)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\ud[89a-f]", re.I)


class RowError(ValueError):
    """A row that cannot become a record; it is quarantined and the others go on.

    Args:
        field: the column, or `row` for the row as a whole.
        reason: the kind of fault, one of few, so that it can be counted.
        detail: what tells this row from others with the same fault.
    """

    def __init__(self, field: str, reason: str, detail: str = "") -> None:
        super().__init__(field, reason, detail)
        self.field, self.reason, self.detail = field, reason, detail

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


def depth(text: str) -> int:
    """Deepest nesting of brackets outside strings in a JSON text, without parsing it.

    >>> depth('{"a": [[1], "[[["]}')
    3
    """
    level = deepest = 0
    for token in _BRACKETS.finditer(text):
        if token.group() in "[{":
            level += 1
            deepest = max(deepest, level)
        elif token.group() in "]}":
            level -= 1
    return deepest


def value_end(text: str, start: int) -> int | None:
    """Where the JSON value that starts at `start` ends, by its brackets or its comma; None where it never does.

    >>> value_end('[{"a": "]}"}, 2]', 1), value_end('[1, 2]', 1), value_end('[{"a": 1', 1)
    (12, 2, None)
    """
    level = 0
    if text[start] not in "[{":
        token = re.compile(r'"(?:[^"\\]|\\.)*+"|[^\s,\]}"]+', re.S).match(text, start)
        return token.end() if token else None
    for token in _BRACKETS.finditer(text, start):
        if token.group() in "[{":
            level += 1
        elif token.group() in "]}":
            level -= 1
            if level == 0:
                return token.end()
    return None


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise RowError("row", "an integer is too long", f"{len(digits):,} digits, at most {MAX_DIGITS:,}")
    return int(digits)


def _float(literal: str) -> float:
    number = float(literal)
    if math.isinf(number):
        raise RowError("row", "a number is not finite", literal[:40])
    return number


def _constant(name: str) -> Any:
    raise RowError("row", "a number is not finite", name)


def repeated(names: Iterable[str]) -> str | None:
    """The first name that came before, None where all differ; in one pass.

    >>> repeated(["a", "b", "a"])
    'a'
    """
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            return name
        earlier.add(name)
    return None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise RowError(str(repeated(key for key, _ in pairs))[:40], "the key stands twice in one object")
    return members


_DECODER = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_integer, parse_float=_float, parse_constant=_constant
)


def parse_json(text: str, field: str = "row") -> Any:
    """The value of a JSON text, strictly: no repeated keys, no NaN, no lone surrogates, bounded nesting and digits.

    Raises:
        RowError: of `field`, with what is wrong.
    """
    if text.count("[") + text.count("{") > MAX_DEPTH and (levels := depth(text)) > MAX_DEPTH:
        raise RowError(field, "nested too deeply", f"{levels:,} levels, at most {MAX_DEPTH}")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RowError(field, "not JSON", f"{error.msg} at character {error.pos + 1}") from None
    if _SURROGATE_ESCAPE.search(text):
        for column, string in _strings(value):
            check_text(string, column or field)
    return value


def parse_row(text: str) -> dict[str, Any]:
    """The columns of a row written as a JSON object.

    Raises:
        RowError: what is wrong with it.
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise RowError("row", "not a JSON object", f"it is {kind(value)}")
    return value


def _strings(value: Any, column: str = "") -> Iterator[tuple[str, str]]:
    """(column, text) of every key and string; the depth was checked before."""
    if isinstance(value, str):
        yield column, value
    elif isinstance(value, list):
        for entry in value:
            yield from _strings(entry, column)
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield column, key
            yield from _strings(entry, column or _SURROGATE.sub("?", key)[:40])


def has_surrogate(text: str) -> bool:
    """Whether half of a surrogate pair stands in the text, as in what is left of bytes that are not UTF-8."""
    return _SURROGATE.search(text) is not None


def check_text(text: str, field: str) -> str:
    """The text itself.

    Raises:
        RowError: it holds half of a surrogate pair, which no file in UTF-8 can.
    """
    half = _SURROGATE.search(text)
    if half:
        raise RowError(field, "a lone surrogate", f"\\u{ord(half.group()):04x} at character {half.start() + 1}")
    return text


def kind(value: Any) -> str:
    """What a value is, in words.

    >>> kind(None), kind(True), kind({}), kind(2.5)
    ('null', 'true or false', 'an object', 'a number')
    """
    words = {
        type(None): "null", bool: "true or false", int: "a number", float: "a number", Decimal: "a number",
        str: "text", list: "a list", dict: "an object", bytes: "bytes",
    }  # fmt: skip
    return words.get(type(value), type(value).__name__)


def decode(raw: bytes, field: str) -> str:
    """UTF-8 text of bytes.

    Raises:
        RowError: they are something else; nothing is replaced by U+FFFD.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RowError(field, "not UTF-8", f"byte 0x{raw[error.start]:02x} at byte {error.start + 1}") from None


def text_of(value: Any, field: str) -> str:
    """A prompt, solution or system message: text, or bytes that are UTF-8.

    Raises:
        RowError: it is something else.
    """
    if isinstance(value, bytes):
        return decode(value, field)
    if not isinstance(value, str):
        raise RowError(field, "not text", f"it is {kind(value)}")
    return check_text(value, field)


def scalar_text(value: Any, field: str) -> str:
    """An answer or identity as text: numbers, true and false as Python writes them, dates in ISO 8601.

    Raises:
        RowError: null, a list, an object, or a number that is not finite.

    >>> scalar_text(Decimal("1.50"), "answer"), scalar_text(True, "answer"), scalar_text(date(2024, 5, 6), "answer")
    ('1.50', 'True', '2024-05-06')
    """
    plain_value = plain(value, field)
    if plain_value is None or isinstance(plain_value, (list, dict)):
        raise RowError(field, "not text or a number", f"it is {kind(plain_value)}")
    return str(plain_value)


def plain(value: Any, field: str, level: int = 0) -> Any:
    """The value in JSON's types: what Parquet adds to them becomes text.

    Raises:
        RowError: bytes that are not UTF-8, a number that is not finite, nesting past `MAX_DEPTH`, or any other type.
    """
    if isinstance(value, str):
        return check_text(value, field)
    if value is None or isinstance(value, (bool, int)):
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise RowError(field, "an integer is too long", f"{value.bit_length():,} bits")
        return value
    if isinstance(value, (float, Decimal)):
        if not math.isfinite(value):
            raise RowError(field, "a number is not finite", str(value))
        return value if isinstance(value, float) else str(value)
    if isinstance(value, bytes):
        return decode(value, field)
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if level >= MAX_DEPTH:
        raise RowError(field, "nested too deeply", f"over {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {check_text(str(key), field): plain(entry, field, level + 1) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry, field, level + 1) for entry in value]
    raise RowError(field, "a type that is not read", kind(value))


def sample(value: Any) -> str:
    """The first `SAMPLE` characters of a row or a line, safe to write anywhere."""
    if isinstance(value, bytes):
        value = value[: SAMPLE * 4].decode(errors="backslashreplace")
    if not isinstance(value, str):
        value = json.dumps(_shorten(value), default=str)
    value = value.encode(errors="backslashreplace").decode()
    return value if len(value) <= SAMPLE else value[: SAMPLE - 1] + "…"


def _shorten(value: Any, level: int = 0) -> Any:
    """The value with long strings, integers and lists cut, for a sample of it."""
    if isinstance(value, (str, bytes)):
        return value[:SAMPLE]
    if isinstance(value, int) and value.bit_length() > 300:
        return f"an integer of {value.bit_length():,} bits"
    if level >= 4 and isinstance(value, (dict, list, tuple)):
        return "…"
    if isinstance(value, dict):
        return {str(key)[:SAMPLE]: _shorten(entry, level + 1) for key, entry in list(value.items())[:50]}
    if isinstance(value, (list, tuple)):
        return [_shorten(entry, level + 1) for entry in value[:20]]
    return value


def normalise(text: str) -> str:
    r"""NFC, Unix line ends, no control characters, no white space at line ends or around the text.

    >>> normalise("  a\r\nb \x00 ")
    'a\nb'
    """
    text = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub("", text)
    return "\n".join(line.rstrip() for line in text.split("\n")).strip()
