"""Files of object stores and other file systems that fsspec reads: found, told apart by their version, fetched once.

A version is what the store says of the contents (a checksum or a strong ETag), so asking for it moves no data. Where a store says
nothing that changes with every change of the contents, the file is fetched to learn its SHA-256. A fetched file lies in
`remote/` of the project folder, under a name made of its address and version, and is complete whenever it is there. What these stores
ask of whoever reads (keys, tokens, endpoints) comes from the environment, where their own libraries look for it.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pipelines.base.errors import DataError, UserError, did_you_mean
from pipelines.base.files import digest, disk_full, file_sha256, fsync_dir, named
from pipelines.base.project import make_home
from pipelines.base.secrets import redact
from pipelines.data.files import URL

FIELD = "curate.sources.path"
CHUNK = 8 * 2**20
"""Bytes that are asked for at a time."""
REMEMBERED_S = 60.0
"""Seconds for which a process does not ask again what is at an address."""
_LITERAL = ("http", "https")
"""Protocols whose addresses hold `?` and `*` that are no wildcards."""
_CHECKSUMS = ("md5Hash", "content_md5", "Content-MD5", "xet_hash", "blob_id", "ETag", "etag")
"""What stores call a checksum or tag of a file's contents, the surest first."""
CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket FSSPEC_S3='{\"anon\": true}'.",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`.",
    "hf": "Set HF_TOKEN, or run `hf auth login`.",
}
"""How the stores of a protocol are told who asks."""
_SAME = {"s3a": "s3", "gcs": "gs"}
_GOOGLE = ("gs", "gcs")

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and all bytes, None where the store does not say how many."""


@dataclass(frozen=True)
class RemoteFile:
    """A file as its store describes it."""

    url: str
    name: str
    """Below the folder that the names of all files of one address are told from."""
    size: int | None
    version: str
    """Another one for other contents; as a text that begins with what it is: `sha256:`, `md5Hash:`, `ETag:`."""

    @property
    def place(self) -> Path:
        """Where its copy is, or will be."""
        return make_home() / "remote" / digest([self.url, self.version])[:32] / PurePosixPath(self.name).name


_known: dict[str, tuple[float, list[RemoteFile]]] = {}
"""Address → when it was asked for, and what was there."""


def forget() -> None:
    """Ask anew what is at every address."""
    _known.clear()


def pin(url: str, files: list[dict[str, Any]]) -> None:
    """Take what another process was told (`pinned`) for what is at an address."""
    _known[url] = (float("inf"), [RemoteFile(**each) for each in files])


def pinned(url: str) -> list[dict[str, Any]]:
    """What this process was told last of an address, as plain values."""
    return [asdict(each) for each in (_known[url][1] if url in _known else listing(url))]


def listing(url: str) -> list[RemoteFile]:
    """The files at an address, or that a pattern finds, by name. What was asked within the last `REMEMBERED_S` seconds is not asked again.

    Raises:
        DataError: nothing is there, it is no file, the store cannot be asked, or a library is missing.
    """
    files = remembered(url)
    if not files:
        files = _ask(url)
        remember(url, files)
    return files


def remembered(url: str) -> list[RemoteFile]:
    """What was at an address within the last `REMEMBERED_S` seconds, or is pinned; empty where it must be asked."""
    asked, files = _known.get(url, (0.0, []))
    return files if time.monotonic() - asked <= REMEMBERED_S else []


def remember(url: str, files: list[RemoteFile]) -> None:
    """Note what is at an address now."""
    _known[url] = (time.monotonic(), files)


def local_copies(url: str) -> list[Path]:
    """The copies of the files at an address where all of them are here, else none; nothing is fetched.

    Raises:
        DataError: as `listing`.
    """
    copies = [each.place for each in listing(url)]
    return copies if all(copy.is_file() for copy in copies) else []


def fetch(url: str, progress: Progress = lambda done, total: None) -> dict[Path, RemoteFile]:
    """Copies of the files at an address, in their order; those that are not here are fetched, from where an earlier attempt stopped.

    Raises:
        DataError: as `listing`, or the connection broke, or a file has changed since it was listed.
    """
    copies = {}
    for file in listing(url):
        if not file.place.is_file():
            with _locked(file.place):
                if not file.place.is_file():
                    _fetch(file, progress)
        copies[file.place] = file
    return copies


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Only one process fetches a file."""
    from filelock import FileLock

    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.parent / ".lock"):
        yield


def _ask(url: str) -> list[RemoteFile]:
    system, path = _system(url)
    with _explained(url, system):
        system.invalidate_cache()
        pattern = not url.lower().startswith(_LITERAL) and any(mark in path for mark in "*?[")
        about = system.glob(path, detail=True) if pattern else {path: system.info(path)}
        about = {name: info for name, info in about.items() if not pattern or info["type"] == "file"}
    if not about:
        raise DataError(FIELD, f"no file at {redact(url)}", "Check the pattern; folders are no files.")
    root = _root(path) if pattern else str(PurePosixPath(path).parent)
    files = []
    for name, info in sorted(about.items()):
        if info["type"] != "file":
            raise DataError(FIELD, f"{redact(url)} is a folder", f"Name files: {redact(url).rstrip('/')}/*.jsonl.")
        address = url if not pattern else f"{URL.match(url)[0]}{name}"  # type: ignore[index]  # `_system` has matched it
        below = os.path.relpath(name, root) if pattern else PurePosixPath(path.partition("?")[0]).name
        files.append(RemoteFile(address, below, info.get("size"), _version(info)))
    return [each if each.version else _of_contents(each) for each in files]


def _root(path: str) -> str:
    """What stands before the first part with a wildcard."""
    parts = PurePosixPath(path).parts
    first = next(number for number, part in enumerate(parts) if any(mark in part for mark in "*?["))
    return str(PurePosixPath(*parts[:first]))


def _version(info: dict[str, Any]) -> str:
    """What a store says that changes with the contents; empty where it says nothing of the kind."""
    large = info.get("lfs")
    if large and (checksum := large.get("sha256")):
        return f"sha256:{checksum}"
    for name in _CHECKSUMS:
        value = info.get(name) or (info.get("content_settings") or {}).get(name)
        if value and not str(value).startswith("W/"):  # a weak tag may stay when bytes change
            value = value.hex() if isinstance(value, bytes | bytearray) else str(value).strip('"')
            return f"{name}:{value}:{info.get('size')}"
    return ""


def _of_contents(file: RemoteFile) -> RemoteFile:
    """The file with the SHA-256 of its contents as its version; they are here then."""
    system, path = _system(file.url)
    building = make_home() / "remote" / f".{digest([file.url, os.getpid(), time.time()])[:16]}.part"
    building.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _explained(file.url, system, building):
            _copy(system, path, building, 0, file.size, lambda done, total: None)
        versioned = RemoteFile(file.url, file.name, building.stat().st_size, f"sha256:{file_sha256(building)}")
        with _locked(versioned.place):
            os.replace(building, versioned.place)
    finally:
        building.unlink(missing_ok=True)
    return versioned


def _fetch(file: RemoteFile, progress: Progress) -> None:
    """The file to its place, by one rename when it is whole; what is there of an earlier attempt is kept."""
    system, path = _system(file.url)
    part = file.place.with_name(f".{file.place.name}.part")
    have = part.stat().st_size if part.is_file() else 0
    with _explained(file.url, system, part):
        _copy(system, path, part, have if file.size and have <= file.size else 0, file.size, progress)
        system.invalidate_cache()
        now = _version(system.info(path)) or f"sha256:{file_sha256(part)}"
    size = part.stat().st_size
    if now != file.version or (file.size is not None and size != file.size):
        part.unlink()
        raise DataError(FIELD, f"{redact(file.url)} changed while it was fetched", "Run again when its writer is done.")
    os.replace(part, file.place)
    fsync_dir(file.place.parent)


def _copy(system: Any, path: str, to: Path, start: int, size: int | None, progress: Progress) -> None:
    """Append what follows byte `start` to the local file; a store that cannot begin there is read from its beginning."""
    with system.open(path, "rb", block_size=CHUNK, cache_type="readahead") as source:
        if start:
            try:
                source.seek(start)
            except (OSError, ValueError):
                start = 0
        with open(to, "r+b" if start else "wb") as target:
            target.truncate(start)
            target.seek(start)
            _stream(source, target, start, size, progress)
            target.flush()
            os.fsync(target.fileno())


def _stream(source: IO[bytes], target: IO[bytes], done: int, size: int | None, progress: Progress) -> None:
    while chunk := source.read(CHUNK):
        target.write(chunk)
        done += len(chunk)
        progress(done, size)


def _system(url: str) -> tuple[Any, str]:
    """The file system of an address, and the address as that system spells it.

    Raises:
        DataError: there is none, or its library is missing.
    """
    import fsspec
    from fsspec.core import url_to_fs
    from fsspec.registry import known_implementations

    match = URL.match(url)
    protocol = match["protocol"].lower() if match else ""
    if "::" in url:
        raise DataError(FIELD, f"{redact(url)} is a chain of file systems", "Name one file, or one pattern.")
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        raise DataError(
            FIELD, f"{protocol}:// is no protocol that fsspec knows", did_you_mean(protocol, known_implementations)
        ) from None
    except ImportError as error:
        missing = str(getattr(error.__cause__, "name", None) or protocol).partition(".")[0]
        raise DataError(
            FIELD,
            f"{redact(url)} is read by the library {missing}, which is not installed",
            f"Run: pip install {missing}",
        ) from None
    if protocol in _GOOGLE:
        # It prints a traceback of each error that it raises, and errors are told by `_explained`.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    with _explained(url, None):
        return url_to_fs(url)


@contextmanager
def _explained(url: str, system: Any, part: Path | None = None) -> Iterator[None]:
    """Errors of the libraries behind fsspec, which share no class, as one that names the file and what to do."""
    protocol = URL.match(url)["protocol"].lower()  # type: ignore[index]
    login = CREDENTIALS.get(_SAME.get(protocol, protocol), "Set the environment variables that its library reads.")
    shown = redact(url)
    try:
        try:
            yield
        except FileNotFoundError as error:  # which a web server's refusal, and its absence, become too
            if protocol in _LITERAL and error.__cause__ is not None and _status(error.__cause__) != "404":
                raise error.__cause__ from None
            raise
    except (UserError, MemoryError):
        raise
    except FileNotFoundError as error:
        about = redact(str(error).splitlines()[0] if str(error) else "")
        detail = f" ({about[:200]})" if about and about not in shown and "://" not in about else ""
        private = f" What is private looks the same: {login}" if protocol == "hf" else ""
        raise DataError(FIELD, f"there is no file {shown}{detail}", f"Check the address.{private}") from None
    except Exception as error:
        if part is not None and isinstance(error, OSError) and (full := disk_full(named(error, part), part.parent)):
            raise full from None
        first = redact((str(error).splitlines() or [""])[0])[:200].rstrip(".") or type(error).__name__
        if isinstance(error, PermissionError) or _asks_who(error) or (protocol in _GOOGLE and _bare(error)):
            raise DataError(FIELD, f"{shown} may not be read with these credentials ({first})", login) from None
        raise DataError(
            FIELD,
            f"{shown} could not be read ({type(error).__name__}: {first})",
            "Check the network and the address of the store, and run again: a fetch continues where it stopped.",
        ) from error


def _bare(error: BaseException) -> bool:
    """Whether an error is an OSError without a number, which gcsfs makes of HTTP's 403, and of nothing else that reading a file meets."""
    return type(error) is OSError and error.errno is None


def _asks_who(error: BaseException) -> bool:
    """Whether an error of a store's library is that nobody, or the wrong one, has asked."""
    word = re.search(r"Credential|TokenRetrieval|LocalTokenNotFound|GatedRepo", type(error).__name__)
    return word is not None or _status(error) in ("401", "403")


def _status(error: BaseException) -> str:
    """The HTTP status that an error of a store's library tells of; empty where it tells none."""
    status = getattr(error, "status", None) or getattr(error, "code", None)
    with suppress(AttributeError):
        status = status or error.response.status_code  # type: ignore[attr-defined]
    return str(status or "")
