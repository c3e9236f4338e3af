"""What crosses a sandbox's wall: frames of JSON, and plain Python values as JSON with tags.

None, truth values, text, short integers and lists are themselves; everything else is an object with one key:
i (integer, hex), f (float, hex), c (complex), b (bytes, hex), t (tuple), s (set), z (frozenset), d (dict as pairs),
n (numpy array: kind of its numbers, shape, nested lists). A numpy number is the plain number.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from typing import Any

HEADER = struct.Struct("!I")
FRAME_BYTES = 1 << 20
"""A longer frame ends the program that sends it."""
DEPTH = 60
"""Levels of nesting that cross."""
SHORT = 1 << 53
ARRAYS = {"b": "?", "i": "i8", "u": "u8", "f": "f8", "c": "c16"}
"""Kinds of numpy numbers that cross → as what they arrive."""


class Uncrossable(ValueError):
    """A value that is no plain data."""


def encode(value: Any, depth: int = DEPTH) -> Any:
    """A value as tagged JSON data.

    Subclasses become their plain base: a Counter a dict, a named tuple a tuple.

    Raises:
        Uncrossable: it holds a function, an object, or is nested too deeply.

    >>> encode((1, {2: 0.5}))
    {'t': [1, {'d': [[2, {'f': '0x1.0000000000000p-1'}]]}]}
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -SHORT < number < SHORT else {"i": hex(number)}
    if isinstance(value, float):
        return {"f": float.hex(value)}
    if isinstance(value, complex):
        return {"c": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, bytes | bytearray):
        return {"b": bytes(value).hex()}
    if depth <= 0:
        raise Uncrossable("nested too deeply")
    if isinstance(value, list):
        return [encode(item, depth - 1) for item in list.__iter__(value)]
    if isinstance(value, tuple):
        return {"t": [encode(item, depth - 1) for item in tuple.__iter__(value)]}
    if isinstance(value, set | frozenset):
        return {"z" if isinstance(value, frozenset) else "s": [encode(item, depth - 1) for item in value]}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in ARRAYS:
        return encode(value.item(), depth - 1)
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in ARRAYS:
        return {"n": [value.dtype.kind, list(value.shape), encode(value.tolist(), depth - 1)]}
    if isinstance(value, dict):
        return {"d": [[encode(k, depth - 1), encode(v, depth - 1)] for k, v in dict.items(value)]}
    raise Uncrossable(f"a value of type {type(value).__name__[:80]}")


def decode(data: Any, depth: int = DEPTH) -> Any:
    """The value of tagged JSON data.

    Only for use inside a sandbox: a set of chosen integers takes quadratic time.

    Raises:
        Uncrossable: it is none.

    >>> decode(encode([(1, 2**70), {3: -0.0}, {b"x"}]))
    [(1, 1180591620717411303424), {3: -0.0}, {b'x'}]
    """
    if data is None or isinstance(data, bool | str | int):
        return data
    if depth <= 0:
        raise Uncrossable("nested too deeply")
    if isinstance(data, list):
        return [decode(item, depth - 1) for item in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise Uncrossable("no tagged value")
    ((tag, body),) = data.items()
    try:
        return _tagged(tag, body, depth - 1)
    except (TypeError, KeyError, OverflowError, ImportError) as error:
        raise Uncrossable(f"no tagged value ({error})") from None


def _tagged(tag: str, body: Any, depth: int) -> Any:
    if tag == "i":
        return int(body, 16)
    if tag == "f":
        return float.fromhex(body)
    if tag == "c":
        return complex(float.fromhex(body[0]), float.fromhex(body[1]))
    if tag == "b":
        return bytes.fromhex(body)
    if tag == "n":
        return _array(body, depth)
    if tag == "d":
        return {decode(k, depth): decode(v, depth) for k, v in body}
    return {"t": tuple, "s": set, "z": frozenset}[tag](decode(item, depth) for item in body)


def _array(body: Any, depth: int) -> Any:
    kind, shape, items = body
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < SHORT for n in shape):
        raise Uncrossable("no array")
    import numpy

    array = numpy.array(decode(items, depth), dtype=ARRAYS[kind])
    if array.size != math.prod(shape):
        raise Uncrossable("no array")
    return array.reshape(shape)


def nested_at_most(data: Any, most: int) -> bool:
    """Whether JSON data has at most so many levels of lists and objects inside one another.

    >>> nested_at_most([{"a": []}], 3), nested_at_most([{"a": []}], 2), nested_at_most(1, 0)
    (True, False, True)
    """
    level = [data]
    for _ in range(most + 1):
        containers = [item for item in level if isinstance(item, list | dict)]
        if not containers:
            return True
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
    return False


def frame(message: Any, most: int = FRAME_BYTES) -> bytes:
    """A message as it is sent; programs may send `most` bytes, the owner more.

    Raises:
        Uncrossable: it is too long or no JSON.
    """
    try:
        body = json.dumps(message).encode()
    except (RecursionError, ValueError, TypeError) as error:
        raise Uncrossable(str(error)[:80]) from None
    if len(body) > most:
        raise Uncrossable(f"{len(body)} bytes, at most {most}")
    return HEADER.pack(len(body)) + body


def send(connection: Any, message: Any) -> None:
    """Send a message over a blocking socket."""
    connection.sendall(frame(message))


def receive(connection: Any) -> Any:
    """The next message of a blocking socket; EOFError at its end."""
    (size,) = HEADER.unpack(_exactly(connection, HEADER.size))
    return json.loads(_exactly(connection, size))


def _exactly(connection: Any, size: int) -> bytes:
    chunks, missing = [], size
    while missing:
        chunk = connection.recv(min(missing, 1 << 16))
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)
