"""Stores of files on this machine: S3, Google Cloud Storage, and a web server that can break a connection or change a file."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socketserver
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from servers import free_port, serving

KEY, SECRET = "AKIAMINE", "secret-of-mine-0123456789"


@contextlib.contextmanager
def s3(monkeypatch: Any) -> Iterator[Any]:
    """moto's S3 server, and the environment in which s3fs reads it; s3fs's file system for putting things there."""
    import s3fs
    from moto.moto_api._internal import moto_api_backend
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        s3fs.S3FileSystem.clear_instance_cache()
        yield s3fs.S3FileSystem(skip_instance_cache=True)
    finally:
        server.stop()
        moto_api_backend.reset()
        s3fs.S3FileSystem.clear_instance_cache()


@contextlib.contextmanager
def gcs(monkeypatch: Any) -> Iterator[Any]:
    """An emulator of Google Cloud Storage's JSON API with a bucket `bucket`; gcsfs's file system for putting things there."""
    from gcp_storage_emulator.server import create_server

    monkeypatch.setattr(
        socketserver.BaseServer, "handle_error", lambda *_: None
    )  # gcsfs closes connections before they end
    port = free_port()
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    try:
        with google_at(monkeypatch, f"http://127.0.0.1:{port}") as system:
            yield system
    finally:
        server.stop()


@contextlib.contextmanager
def google_at(monkeypatch: Any, url: str) -> Iterator[Any]:
    """`gs://` is asked at this address, for the length of a block.

    It is the class behind gcsfs's present default, which asks Google's gRPC API first what kind a bucket is, and waits a minute where
    nothing speaks that.
    """
    from gcsfs.core import GCSFileSystem

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    for protocol in ("gs", "gcs"):
        monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, protocol, GCSFileSystem)
    GCSFileSystem.clear_instance_cache()
    try:
        yield GCSFileSystem(skip_instance_cache=True)
    finally:
        GCSFileSystem.clear_instance_cache()


class Web:
    """Serves bytes by path, with ranges.

    Args:
        tag: what ETag the contents get; None for a server that gives none.
    """

    def __init__(self, tag: str | None = '"{}"') -> None:
        self.files: dict[str, bytes] = {}
        self.status: dict[str, int] = {}
        self.refuses: int | None = None
        """Status of every answer."""
        self.requests: list[tuple[str, str, str]] = []
        """Method, path, range."""
        self.breaks_at: int | None = None
        """Byte of a file from which on nothing is sent any more; the connection is closed there."""
        self.after: Any = lambda path: None
        """Called when a body was sent."""
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def reply(self) -> None:
                wanted = self.headers.get("Range", "")
                web.requests.append((self.command, self.path, wanted))
                body = web.files.get(self.path)
                status = web.refuses or web.status.get(self.path) or (404 if body is None else 206 if wanted else 200)
                body = (body or b"") if status < 400 else b""
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                begin, end = int(first or 0), min(int(last or len(body) - 1) + 1, len(body))
                self.send_response(status)
                if tag is not None and status < 400:
                    self.send_header("ETag", tag.format(hashlib.md5(body).hexdigest()))
                self.send_header("Accept-Ranges", "bytes")
                if status == 206:
                    self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(body)}")
                self.send_header("Content-Length", str(max(0, end - begin)))
                self.end_headers()
                if self.command == "HEAD":
                    return
                if web.breaks_at is not None and end > web.breaks_at:
                    self.wfile.write(body[begin : max(begin, web.breaks_at)])
                    self.close_connection = True
                    return
                self.wfile.write(body[begin:end])
                web.after(self.path)

            do_GET = do_HEAD = reply

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def web(tag: str | None = '"{}"') -> AbstractContextManager[Web]:
    """A web server for the length of a block."""
    return serving(Web(tag))
