"""A stand-in of the Hugging Face hub: the requests with which a model is uploaded and the files that have come, and data sets to read."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from servers import serving


class Hub:
    """Keeps what it is sent.

    Args:
        refuses: the status of every reply; 0 where it takes everything.
    """

    def __init__(self, refuses: int = 0) -> None:
        self.created: list[dict[str, Any]] = []
        self.commits: list[str] = []
        self.files: dict[str, bytes] = {}
        self.large: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.datasets: dict[str, dict[str, bytes]] = {}
        """Name of a data set → path → contents."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def reply(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                hub.tokens.add(str(self.headers.get("Authorization")))
                status, answer = hub.read(self.path) or (200, hub.answer(self.path, body))
                if refuses:
                    status, answer = refuses, {"error": "no"}
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                if isinstance(answer, bytes) and (wanted := self.headers.get("Range")):
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    status, data = 206, data[int(first) : int(last) + 1 if last else None]
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if status == 404:
                    self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = reply

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def read(self, path: str) -> tuple[int, Any] | None:
        """Status and reply to a request about a data set; None for any other."""
        match = re.match(r"(/api)?/datasets/([^/]+/[^/]+)(?:/(revision|tree|resolve)/main)?/?([^?]*)", unquote(path))
        if match is None or path.endswith("/repos/create"):
            return None
        _, name, asked, below = match.groups()
        files = self.datasets.get(name)
        if files is None:
            return 404, {"error": "Repository not found"}
        if asked == "resolve":
            return 200, files[below]
        if asked == "tree":
            return 200, tree(files, below)
        return 200, {"id": name, "sha": "a" * 40, "siblings": []}

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """The reply to a request."""
        if path.startswith("/large/"):
            self.large[path.removeprefix("/large/")] = body
            return {}
        if path.endswith("/repos/create"):
            about = json.loads(body)
            self.created.append(about)
            return {"url": f"{self.url}/{about['organization']}/{about['name']}"}
        if "/preupload/" in path:
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith((".safetensors", ".gguf")) else "regular" for name in names}
            return {
                "files": [{"path": n, "uploadMode": m, "shouldIgnore": False, "oid": None} for n, m in modes.items()]
            }
        if path.endswith("/objects/batch"):
            objects = json.loads(body)["objects"]
            return {"transfer": "basic", "objects": [
                {**each, "actions": {"upload": {"href": f"{self.url}/large/{each['oid']}"}}} for each in objects
            ]}  # fmt: skip
        if "/commit/" in path:
            owner, name = path.split("/")[3:5]
            for line in map(json.loads, body.decode().splitlines()):
                value = line["value"]
                if line["key"] == "header":
                    self.commits.append(value["summary"])
                else:
                    self.files[value["path"]] = (
                        self.large[value["oid"]] if line["key"] == "lfsFile" else base64.b64decode(value["content"])
                    )
            return {
                "success": True,
                "commitUrl": f"{self.url}/{owner}/{name}/commit/{'a' * 40}",
                "commitOid": "a" * 40,
                "hookOutput": "",
            }
        return {}


def tree(files: dict[str, bytes], folder: str) -> list[dict[str, Any]]:
    """What a folder of a data set holds, as the hub lists it."""
    inside = {name: body for name, body in files.items() if name.startswith(f"{folder}/" if folder else "")}
    cut = len(folder) + 1 if folder else 0
    folders = dict.fromkeys(name[: cut + name[cut:].index("/")] for name in inside if "/" in name[cut:])
    return [{"type": "directory", "path": name, "oid": "d" * 40, "size": 0} for name in folders] + [
        {
            "type": "file",
            "path": name,
            "size": len(body),
            "oid": hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest(),
        }
        for name, body in inside.items()
        if "/" not in name[cut:]
    ]


def running(refuses: int = 0) -> AbstractContextManager[Hub]:
    """A hub for the length of a block."""
    return serving(Hub(refuses))
