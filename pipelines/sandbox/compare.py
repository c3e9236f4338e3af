"""Whether two values are equal, as the wire carries them: nothing that a program sent is decoded or hashed on this side."""

from __future__ import annotations

import json
import math
from typing import Any

from pipelines.sandbox.inside.wire import DEPTH

TOLERANCE = 1e-9
"""Relative difference from an expected float that counts as equal."""
NEAR_ZERO = 1e-12
"""A number as small as this is equal to an expected 0.0."""


def equal(expected: Any, value: Any, *, tuples: bool = False, depth: int = DEPTH + 4) -> bool:
    """Whether a value is the expected one: by type and value; where a float is expected, numbers may differ by 1e-9.

    An expected integer is met by a float of exactly its value. A truth value is no number. In sets and keys numbers must be
    equal exactly.

    Args:
        expected: tagged data, as `wire.encode` gives it; trusted.
        value: tagged data from a program.
        tuples: whether a tuple or a numpy array will do where a list is expected, as where the expected value was written in JSON.

    >>> equal([1, {"f": "0x1p1"}], [1, 2]), equal(1, True), equal([1], {"t": [1]}), equal([1], {"t": [1]}, tuples=True)
    (True, False, False, True)
    >>> equal(10**9, 1e9), equal(10**9, 1e9 + 1), equal(1e9, 1e9 + 0.1)
    (True, False, True)
    """
    if depth <= 0:
        return False
    if tuples and isinstance(expected, list):
        value = _listed(value)
    if expected is None or isinstance(expected, bool | str) or value is None or isinstance(value, bool | str):
        return type(expected) is type(value) and expected == value
    number, other = _number(expected), _number(value)
    if number is not None or other is not None:
        return number is not None and other is not None and _close(number, other)
    sequence = _sequence(expected)
    if sequence is not None:
        other_sequence = _sequence(value)
        alike = isinstance(expected, list) == isinstance(value, list) or (tuples and isinstance(expected, list))
        return (
            other_sequence is not None
            and alike
            and len(sequence) == len(other_sequence)
            and all(equal(a, b, tuples=tuples, depth=depth - 1) for a, b in zip(sequence, other_sequence, strict=True))
        )
    if not (isinstance(expected, dict) and isinstance(value, dict) and expected.keys() == value.keys()):
        return False
    if "d" in expected:
        pairs, other_pairs = _pairs(expected["d"]), _pairs(value["d"])
        if pairs is None or other_pairs is None or pairs.keys() != other_pairs.keys():
            return False
        return all(equal(item, other_pairs[key], tuples=tuples, depth=depth - 1) for key, item in pairs.items())
    return canonical(expected) == canonical(value)


def plain(data: Any, depth: int = DEPTH + 4) -> Any:
    """A number, or lists of numbers inside one another, as Python has them; None in the place of everything else.

    Tuples and numpy arrays become lists.

    >>> plain({"t": [1, {"f": "0x1p-1"}, [2, "x", True]]})
    [1, 0.5, [2, None, None]]
    """
    sequence = _sequence(_listed(data))
    if sequence is None or depth <= 0:
        return None if isinstance(data, bool) else _number(data)
    return [plain(item, depth - 1) for item in sequence]


def _listed(data: Any) -> Any:
    """A numpy array as its nested lists; anything else as it is."""
    if isinstance(data, dict) and len(data) == 1 and isinstance(data.get("n"), list) and len(data["n"]) == 3:
        return data["n"][2]
    return data


def _sequence(data: Any) -> list[Any] | None:
    """The items of a list or a tuple."""
    if isinstance(data, dict) and len(data) == 1:
        data = data.get("t")
    return data if isinstance(data, list) else None


def _number(data: Any) -> int | float | None:
    if isinstance(data, int | float):
        return data
    if not isinstance(data, dict) or len(data) != 1:
        return None
    try:
        if "i" in data:
            return int(data["i"], 16)
        if "f" in data:
            return float.fromhex(data["f"])
    except (ValueError, TypeError, OverflowError):
        return None
    return None


def _close(expected: int | float, value: int | float) -> bool:
    if expected == value:  # exact between integers and floats too
        return True
    if isinstance(expected, int):
        return False
    try:
        if math.isnan(expected) or math.isnan(value):
            return math.isnan(expected) and math.isnan(value)
        return math.isclose(expected, value, rel_tol=TOLERANCE, abs_tol=0.0 if expected else NEAR_ZERO)
    except OverflowError:  # an integer that no float can hold
        return False


def _pairs(body: Any) -> dict[str, Any] | None:
    """Canonical key → value; None where it is no list of pairs, or has a key twice."""
    if not isinstance(body, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in body):
        return None
    pairs = {canonical(key): item for key, item in body}
    return pairs if len(pairs) == len(body) else None


def canonical(data: Any, depth: int = DEPTH + 4) -> str:
    """A text that equal values share, exactly; numbers by value, sets and dicts in any order.

    >>> canonical({"s": [2, {"f": "0x1p0"}]}) == canonical({"s": [1, 2]}), canonical(True) == canonical(1)
    (True, False)
    """
    if depth <= 0:
        return "deep"
    if data is None or isinstance(data, bool | str):
        return json.dumps(data)
    number = _number(data)
    if number is not None:
        if isinstance(number, float) and math.isfinite(number) and number == int(number):
            number = int(number)
        return hex(number) if isinstance(number, int) else number.hex()
    if isinstance(data, list):
        return "[" + ",".join(canonical(item, depth - 1) for item in data) + "]"
    if isinstance(data, dict) and len(data) == 1:
        ((tag, body),) = data.items()
        if isinstance(body, list) and tag in ("s", "z"):
            return "{" + ",".join(sorted({canonical(item, depth - 1) for item in body})) + "}"
        if isinstance(body, list):
            texts = [canonical(item, depth - 1) for item in body]
            return f"{tag}({','.join(sorted(texts) if tag == 'd' else texts)})"
        return json.dumps(data)
    return "?" + json.dumps(data)[:1000]
