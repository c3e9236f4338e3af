"""Bytes by name, in a file in the place of memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path


class Spilled(MutableMapping[str, bytes]):
    """A mapping whose values are in a file that is gone with the process; names and places stay in memory.

    >>> import tempfile
    >>> values = Spilled(Path(tempfile.gettempdir()) / "spilled")
    >>> values.update({"a": b"first", "b": b""})
    >>> dict(values)
    {'a': b'first', 'b': b''}

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115
        path.unlink()
        self._places: dict[str, tuple[int, int]] = {}
        """Name → where its value begins, and how long it is."""
        self._end = 0

    def __setitem__(self, name: str, value: bytes) -> None:
        rest = memoryview(value)
        while rest:
            rest = rest[os.pwrite(self._file.fileno(), rest, self._end + len(value) - len(rest)) :]
        self._places[name] = self._end, len(value)
        self._end += len(value)

    def __getitem__(self, name: str) -> bytes:
        begin, length = self._places[name]
        value = b""
        while len(value) < length:
            value += os.pread(self._file.fileno(), length - len(value), begin + len(value))
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __delitem__(self, name: str) -> None:
        del self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
