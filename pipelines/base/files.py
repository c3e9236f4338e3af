"""Files that are complete or absent: atomic writes, digests, folders with a manifest."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.base.errors import DataError, UserError

MANIFEST = "manifest.json"
REPORT = "report"
"""Sub-folder of an artifact, outside its digest, with what no later stage reads: what differs between two equal runs (times, logs,
pictures), and what tells how the rest was made (cards, rows that were dropped, rollouts)."""


def reported(artifact: Path, name: str) -> Path:
    """A file of an artifact's report."""
    return artifact / REPORT / name


def dumps(value: Any) -> str:
    """JSON in one spelling (sorted keys, no spaces), so that equal values have equal digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def digest(value: Any) -> str:
    """SHA-256 of a JSON-like value, as 64 hexadecimal characters."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def texts(value: Any) -> Iterator[str]:
    """Every text in nested lists and mappings, in order; keys are left out.

    >>> list(texts({"a": ["b", {"c": "d"}], "e": 1}))
    ['b', 'd']
    """
    if isinstance(value, str):
        yield value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for each in inner:
        yield from texts(each)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fsync_dir(path: Path) -> None:
    """Make a rename inside the folder survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class DiskFull(UserError):
    """The disk, or a quota on it, is full; earlier commits are intact."""


def disk_full(error: BaseException, folder: Path) -> DiskFull | None:
    """The message for a full disk, naming path and free bytes; None where the error is another one.

    Libraries that write files (torch, safetensors, SQLite) report a full disk with errors of their own, so their messages
    are matched as well.

    Args:
        error: what a write raised.
        folder: what was being written, where the error does not name a file.
    """
    text = str(error)
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    coded = isinstance(error, OSError) and error.errno in codes
    worded = any(w in text for w in ("No space left on device", "database or disk is full", "Disk quota exceeded"))
    cut_short = "PytorchStreamWriter failed" in text or "file write failed" in text or "unexpected pos" in text
    if not (coded or worded or cut_short):
        return None
    named = getattr(error, "filename", None)
    where = Path(os.fsdecode(named)) if isinstance(named, str | bytes) else folder
    free = free_bytes(where) / 1e6
    return DiskFull(
        f"{where} could not be written: the disk is full, or a quota is reached ({free:.1f} MB free)",
        fix="Free space and start again: the previous commit is intact.",
    )


def named(error: OSError, path: Path) -> OSError:
    """The error with the file's name, which a failing write leaves out."""
    return error if error.filename else type(error)(error.errno, error.strerror, str(path))


def write_atomic(path: Path, data: str | bytes, *, durable: bool = True) -> None:
    """Replace a file by one rename; readers see the old bytes or the new ones, never a part.

    `durable=False` skips the wait for the disk: fit for progress, not for checkpoints.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    raw = data.encode() if isinstance(data, str) else data
    try:
        with open(temporary, "wb") as handle:
            handle.write(raw)
            if durable:
                handle.flush()
                os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise named(error, path) from None
        raise


def read_json(path: Path) -> Any:
    """Parsed JSON file, or None where it is absent or damaged (bad bytes, half a file, a folder of that name)."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return None


def read_object(path: Path, **fields: type | tuple[type, ...]) -> dict[str, Any] | None:
    """A JSON object whose named fields, where present, have these types; None for anything else.

    State files are small and can be written again; a malformed one is treated as absent, so readers get the shape they expect.
    """
    body = read_json(path)
    if not isinstance(body, dict):
        return None
    for name, kind in fields.items():
        value = body.get(name)
        unwanted_bool = isinstance(value, bool) and kind is not bool
        if value is not None and (unwanted_bool or not isinstance(value, kind)):
            return None
    return body


def json_lines(path: Path, *, skip_damaged: bool = False) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file, one a line; nothing where there is no file.

    Args:
        skip_damaged: pass over lines that are no object, such as the last one of a log that a kill cut short.

    Raises:
        DataError: a line is no JSON object.
    """
    if not path.is_file():
        return
    with open(path, "rb") as handle:
        for number, raw in enumerate(handle, 1):
            try:
                line = json.loads(raw)
            except (ValueError, RecursionError):
                line = None
            if isinstance(line, dict):
                yield line
            elif not skip_damaged:
                raise DataError(f"{path}, line {number}", "not a JSON object; the file is damaged.")


@contextlib.contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """A folder to fill, made visible under its final name by one rename when the block succeeds.

    A previous folder of that name is moved aside first and removed afterwards, so at every instant
    either the old or the new one is complete.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    building = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.building")
    building.mkdir()
    try:
        yield building
        publish(building, final)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def publish(building: Path, final: Path) -> None:
    """Give a finished folder its final name."""
    old = None
    if final.exists():
        old = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.old")
        os.rename(final, old)
    os.rename(building, final)
    fsync_dir(final.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def contents(folder: Path) -> dict[str, dict[str, Any]]:
    """Relative path → sha256 and size in bytes, for every file but the manifest."""
    return {
        path.relative_to(folder).as_posix(): {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).as_posix() != MANIFEST
    }


def write_manifest(folder: Path, about: dict[str, Any]) -> str:
    """Write `manifest.json` and return the digest of the folder's contents."""
    files = contents(folder)
    content = _content(files)
    body = {**about, "digest": content, "files": files}
    write_atomic(folder / MANIFEST, json.dumps(body, indent=1, sort_keys=True))
    return content


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that has a manifest, in words; None where it is intact."""
    if not folder.is_dir():
        return "it is a file, not a folder"
    manifest = read_manifest(folder)
    if manifest is None:
        return "its manifest is missing or unreadable"
    for name, entry in manifest["files"].items():
        if not is_inside(name):
            return f"its manifest names {name!r}, which lies outside the folder"
        if name.startswith(f"{REPORT}/"):  # logs and pictures: no stage reads them
            continue
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["bytes"] or file_sha256(path) != entry["sha256"]:
            return f"{name} is damaged"
    if _content(manifest["files"]) != manifest["digest"]:
        return "its manifest does not agree with itself"
    return None


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """A folder's manifest where every field has its shape, else None."""
    shape = {"stage": str, "key": str, "digest": str, "files": dict, "numbers": dict, "parts": dict, "run_id": str}
    body = read_object(folder / MANIFEST, **shape, model_id=str, seconds=(int, float))
    if body is None or not all(isinstance(body.get(name), str) for name in ("stage", "key", "digest")):
        return None
    files = body.get("files")
    if not isinstance(files, dict) or not all(_is_entry(entry) for entry in files.values()):
        return None
    return body


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and isinstance(entry.get("bytes"), int)


def is_inside(name: str) -> bool:
    """Whether a relative path stays below the folder it is joined to.

    >>> [is_inside(n) for n in ("model/a.json", "../a", "/etc/passwd", "a/../../b", "C:\\\\a", "")]
    [True, False, False, False, False, False]
    """
    parts = name.split("/")
    return bool(name) and "\\" not in name and "\0" not in name and not any(p in ("", ".", "..") for p in parts)


def _content(files: dict[str, dict[str, Any]]) -> str:
    return digest({name: entry["sha256"] for name, entry in files.items() if not name.startswith(f"{REPORT}/")})


def free_bytes(path: Path) -> int:
    """Bytes free on the disk that holds the path."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
