"""Files that are whole or absent: atomic writes, digests, folders with a manifest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
REPORT = "report"
"""Sub-folder of an artifact with what differs between two equal runs (times, logs, pictures): outside its digest."""


def dumps(value: Any) -> str:
    """JSON in one spelling (sorted keys, no spaces), so that equal values have equal digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def digest(value: Any) -> str:
    """SHA-256 of a JSON-like value, as 64 hexadecimal characters."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


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


def write_atomic(path: Path, data: str | bytes, *, durable: bool = True) -> None:
    """Replace a file by one rename; readers see the old bytes or the new ones, never a part.

    `durable=False` skips the wait for the disk: right for progress, wrong for checkpoints.
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
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """Parsed JSON file, or None where it is absent or damaged."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return None


@contextlib.contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """A folder to fill, made visible under its final name by one rename when the block succeeds.

    A previous folder of that name is moved aside first and removed afterwards, so at every instant
    either the old or the new one is whole.
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
    content = digest({name: entry["sha256"] for name, entry in files.items() if not name.startswith(f"{REPORT}/")})
    body = {**about, "digest": content, "files": files}
    write_atomic(folder / MANIFEST, json.dumps(body, indent=1, sort_keys=True))
    return content


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that has a manifest, in words; None where it is whole."""
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or "files" not in manifest:
        return "its manifest is missing or unreadable"
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["bytes"] or file_sha256(path) != entry["sha256"]:
            return f"{name} is damaged"
    return None


def free_bytes(path: Path) -> int:
    """Bytes free on the disk that holds the path."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
