"""Files a person names: found by path or glob, opened only where they are regular files, read as they were when opened."""

from __future__ import annotations

import codecs
import contextlib
import glob
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.base.errors import DataError

_MAGIC = "*?["
URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.\-]*)://")
_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
LOOKED_AT = 2**30
"""Bytes that a .gz is unpacked to before its rows are read."""
UNPACKED_ALWAYS = 64 * 2**20
"""Bytes that a .gz may unpack to whatever its ratio."""


def data_files(path: str) -> list[Path]:
    """The files that a path means: itself where it exists (brackets and all), else the matches of the glob, sorted.

    Folders in front of the first wildcard that exist by their literal name are no wildcards either.

    `~` is the home folder. Folders that a glob matches are left out; a folder named literally is not, so that opening
    it can say what is wrong. Empty where there is nothing.
    """
    literal = _literal(path)
    if os.path.lexists(literal):
        return [Path(literal)]
    if not any(character in literal for character in _MAGIC):
        return []
    existing, pattern = _split(literal)
    matches = glob.glob(os.path.join(glob.escape(existing), *pattern), recursive=True)
    return [Path(match) for match in sorted(matches) if not os.path.isdir(match)]


def is_url(path: str) -> bool:
    """Whether a path is an address of fsspec's other than a local one.

    >>> [is_url(path) for path in ("s3://bucket/a.jsonl", "data/*.jsonl", "file:///a.jsonl", "C:/a")]
    [True, False, False, False]
    """
    match = URL.match(path)
    return match is not None and match["protocol"].lower() not in ("file", "local")


def data_root(path: str) -> Path:
    """The folder that the names of `data_files(path)` can be told from: the file's own, or what stands before the wildcards."""
    literal = _literal(path)
    return Path(literal).parent if os.path.lexists(literal) else Path(_split(literal)[0])


def _literal(path: str) -> str:
    """The path with the home folder in the place of `~`, and without `file://`."""
    return os.path.expanduser(re.sub(r"^(file|local)://", "", path))


def _split(literal: str) -> tuple[str, tuple[str, ...]]:
    """A glob's folders that exist by their literal name, and the parts after them."""
    existing, pattern = "", Path(literal).parts
    while pattern and os.path.lexists(os.path.join(existing, pattern[0])):
        existing, pattern = os.path.join(existing, pattern[0]), pattern[1:]
    return existing, pattern


def shown_names(paths: list[Path]) -> dict[Path, str]:
    """Path → its name below the folder that all paths share: what tells them apart, and the same on every machine."""
    if len(paths) == 1:
        return {paths[0]: paths[0].name}
    shared = os.path.commonpath([path.parent for path in paths]) if paths else ""
    return {path: os.path.relpath(path, shared or ".") for path in paths}


def refuse(path: Path, fault: str, fix: str) -> DataError:
    """The error of a file that cannot be used: one line with the path, the fault and what to do."""
    fault = " ".join(fault.split())[:200].rstrip(".")
    return DataError("curate.sources.path", f"{path}: {fault}", fix)


class _Snapshot(io.RawIOBase):
    """A regular file up to the size it had when it was opened: a file that grows is not followed for ever."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self.before = os.fstat(descriptor)
        self.size, self.at = self.before.st_size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence]
        self.at = max(0, base + offset)
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        want = min(len(buffer), max(0, self.size - self.at))
        raw = os.pread(self.descriptor, want, self.at)
        buffer[: len(raw)] = raw
        self.at += len(raw)
        return len(raw)

    def check_unchanged(self) -> None:
        """Raise DataError where the file was written to since it was opened."""
        now = os.fstat(self.descriptor)
        if (now.st_size, now.st_mtime_ns) != (self.before.st_size, self.before.st_mtime_ns):
            raise refuse(
                self.path, "it changed while it was read", "Let the writer finish, or copy the file, and run again."
            )

    def close(self) -> None:
        if not self.closed:
            os.close(self.descriptor)
        super().close()


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a regular file, as long as it stays as it is.

    Raises:
        DataError: it is missing, no regular file, not readable, empty, or it changes while it is read.
    """
    snapshot = _Snapshot(path, _descriptor(path))
    handle: Any
    with io.BufferedReader(snapshot, 2**18) as handle:
        if snapshot.size == 0:
            raise refuse(path, "it is empty", "Remove it from the sources, or fill it.")
        try:
            yield handle
        except OSError as error:
            raise refuse(
                path, f"it cannot be read ({error.strerror or error})", "Check the file and the disk."
            ) from error
        snapshot.check_unchanged()


def check_readable(path: Path) -> None:
    """Raise DataError where the path is no regular file that this user may read; nothing is read."""
    os.close(_descriptor(path))


def _descriptor(path: Path) -> int:
    """Open a regular file; a pipe or device is refused before it can block or act."""
    try:
        mode = os.stat(path).st_mode
        kind = next((words for test, words in _KINDS if test(mode)), None)
        if kind == "a folder":
            raise refuse(
                path, "it is a folder", f"Name files: {path}/*.jsonl, or use `kind: hub` for a dataset folder."
            )
        if kind is not None:
            raise refuse(path, f"it is {kind}, not a regular file", "Write its contents to a file first.")
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if path.is_symlink():
            target = os.readlink(path)
            raise refuse(
                path, f"it is a link to {target}, which does not exist", "Restore the target or remove the link."
            ) from None
        raise refuse(path, "there is no such file", "Check the path.") from None
    except PermissionError:
        raise refuse(path, "this user may not read it", f"Allow it: chmod u+r {path}, and x on its folders.") from None
    except OSError as error:
        raise refuse(path, f"it cannot be opened ({error.strerror})", "Check the path.") from None


class _Unpacked(io.RawIOBase):
    """The contents of a .gz, while they stay below a multiple of its size."""

    def __init__(self, path: Path, packed: io.BufferedReader, most: float) -> None:
        self.path, self.count, self.most = path, 0, most
        self.limit = max(UNPACKED_ALWAYS, int(most * packed.raw.size))  # type: ignore[attr-defined]
        self.unpacker = gzip.GzipFile(fileobj=packed, mode="rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            raw = self.unpacker.read1(min(len(buffer), 2**18))
        except EOFError:
            raise refuse(self.path, "the gzip data is cut off", "Fetch or write the file again.") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            place = f"after {self.count:,} unpacked bytes" if self.count else "from its start"
            raise refuse(
                self.path,
                f"it is not gzip {place} ({error})",
                "Write it again with gzip, or drop the .gz from its name if it is not packed.",
            ) from None
        self.count += len(raw)
        if self.count > self.limit:
            raise self.bomb()
        buffer[: len(raw)] = raw
        return len(raw)

    def bomb(self) -> DataError:
        """The error of a file that unpacks to too much."""
        return refuse(
            self.path,
            f"it unpacks to over {self.most:g} times its size",
            "If that is what it holds, raise `max_unpacked_ratio` of the source; otherwise it is a decompression bomb.",
        )


class _Transcoded(io.RawIOBase):
    """UTF-16 or UTF-32 as UTF-8; halves of surrogate pairs pass, for the row's own check to find."""

    def __init__(self, path: Path, source: io.BufferedReader, encoding: str) -> None:
        self.path, self.source, self.encoding = path, source, encoding
        self.decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        self.rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self.rest:
            raw = self.source.read1(2**16)
            try:
                self.rest = self.decoder.decode(raw, final=not raw).encode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                raise refuse(
                    self.path,
                    f"it is not {self.encoding.upper()} as its first bytes say ({error.reason})",
                    "Save it as UTF-8.",
                ) from None
            if not raw:
                break
        raw, self.rest = self.rest[: len(buffer)], self.rest[len(buffer) :]
        buffer[: len(raw)] = raw
        return len(raw)


def _check_unpacked(path: Path, most: float) -> None:
    """Unpack the first `LOOKED_AT` bytes of a .gz and drop them, so that a bomb is refused before any of its rows is read.

    Raises:
        DataError: it is damaged, or unpacks to too much.
    """
    with open_file(path) as packed:
        unpacked = _Unpacked(path, packed, most)
        buffer = memoryview(bytearray(2**18))
        while unpacked.count < LOOKED_AT and unpacked.readinto(buffer):
            pass
        if unpacked.count >= LOOKED_AT and unpacked.count > most * packed.tell():
            raise unpacked.bomb()


@contextlib.contextmanager
def open_text(path: Path, max_unpacked_ratio: float) -> Iterator[io.BufferedReader]:
    """The file's text as UTF-8 bytes, unpacked, without a byte order mark; the bytes are not checked to be UTF-8.

    Args:
        path: a regular file; `.gz` at its end means gzip.
        max_unpacked_ratio: a .gz may unpack to this many times its size (or to 64 MiB).

    Raises:
        DataError: as `open_file`, or the gzip data is damaged, or unpacks to too much.
    """
    if path.suffix == ".gz":
        _check_unpacked(path, max_unpacked_ratio)
    with open_file(path) as handle:
        if path.suffix == ".gz":
            handle = io.BufferedReader(_Unpacked(path, handle, max_unpacked_ratio), 2**18)
        head = handle.peek(4)[:4]
        mark, encoding = next(((mark, name) for mark, name in _BOMS if head.startswith(mark)), (b"", "utf-8"))
        handle.read(len(mark))
        if encoding != "utf-8":
            handle = io.BufferedReader(_Transcoded(path, handle, encoding), 2**18)
        yield handle


def lines(handle: io.BufferedReader, limit: int) -> Iterator[tuple[int, bytes, int]]:
    """(line number from 1, its bytes without the line end, its length in bytes); only the first `limit` bytes are kept."""
    number = 0
    while line := handle.readline(limit + 2):
        number += 1
        length, end = len(line), line[-2:]
        while not end.endswith(b"\n") and (rest := handle.readline(2**18)):
            length += len(rest)
            end = (end + rest)[-2:]
        length -= len(end) - len(end.removesuffix(b"\n").removesuffix(b"\r"))
        yield number, line[: min(length, limit)], length
