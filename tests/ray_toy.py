"""A Ray of one machine for tests: the dashboard's interface for jobs over HTTP, and of the package what an entry point uses.

Its state is in the folder `TOY_RAY`: a file `hold` keeps machines back, `lose` loses one, `refuse` refuses jobs, `away` answers nothing.
`tests/tasks/test_real_ray.py` runs the same on a real cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PACKAGE = """
import concurrent.futures, os, pathlib, threading, time
HOME = pathlib.Path(os.environ["TOY_RAY"])

class exceptions:
    class RayError(Exception): pass

class _Method:
    def __init__(self, method): self.method = method
    def remote(self, *arguments):
        future = concurrent.futures.Future()
        body = lambda: future.set_result(self.method(*arguments))
        threading.Thread(target=body, daemon=True).start()
        return future

class _Actor:
    def __init__(self, cls): self.of = cls()
    def __getattr__(self, name): return _Method(getattr(self.of, name))

class _Class:
    def __init__(self, cls): self.cls = cls
    def options(self, **_): return self
    def remote(self): return _Actor(self.cls)

def init(**_): pass
def remote(**_): return _Class
def kill(_): pass
def get(of): return [each.result() for each in of] if isinstance(of, list) else of.result()

def wait(futures, timeout):
    if (HOME / "lose").exists():
        (HOME / "lose").unlink()
        raise exceptions.RayError("the node is dead")
    done, rest = concurrent.futures.wait(futures, 0.05, "FIRST_COMPLETED")
    return list(done), list(rest)

def get_node_ip_address(): return "127.0.0.1"
def placement_group(*_, **__): return PlacementGroup()
def PlacementGroupSchedulingStrategy(*_): pass

class PlacementGroup:
    def wait(self, timeout_seconds):
        while (HOME / "hold").exists(): time.sleep(0.02)
        return True
"""


class Jobs:
    """Jobs that were handed in: the answers of the dashboard."""

    def __init__(self, state: Path) -> None:
        self.state, self.jobs = state, dict[str, dict[str, Any]]()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.created = 0

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        name = body["submission_id"]
        environment = os.environ | body["runtime_env"]["env_vars"] | {"TOY_RAY": str(self.state)}
        environment["PYTHONPATH"] = f"{self.state / 'package'}{os.pathsep}{environment['PYTHONPATH']}"
        with open(self.state / "driver.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                ["sh", "-c", body["entrypoint"]], env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        self.jobs[name] = {
            "submission_id": name,
            "status": "RUNNING",
            "metadata": body["metadata"],
            "driver_exit_code": None,
        }
        self.created += 1
        return {"submission_id": name}

    def listed(self) -> list[dict[str, Any]]:
        for name, job in self.jobs.items():
            code = self.running[name].poll()
            if code is not None and job["status"] == "RUNNING":
                job |= {"status": "FAILED" if code else "SUCCEEDED", "driver_exit_code": code, "message": "as it ended"}
        return list(self.jobs.values())

    def stop(self, name: str) -> None:
        if self.running[name].poll() is None:
            self.jobs[name]["status"] = "STOPPED"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.running[name].pid, signal.SIGKILL)
            self.running[name].wait()


@contextlib.contextmanager
def cluster(state: Path) -> Iterator[tuple[str, Jobs]]:
    """Address and jobs of a cluster."""
    package = state / "package" / "ray"
    (package / "util").mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    for name in ("__init__", "placement_group", "scheduling_strategies"):
        (package / "util" / f"{name}.py").write_text(
            "from ray import PlacementGroup, PlacementGroupSchedulingStrategy, get_node_ip_address, placement_group\n"
        )
    jobs = Jobs(state)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, body: Any, code: int = 200) -> None:
            self.send_response(500 if (state / "away").exists() else code)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def do_GET(self) -> None:
            self._answer(jobs.listed())

        def do_POST(self) -> None:
            given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path.endswith("/stop"):
                return self._answer(jobs.stop(self.path.split("/")[-2]))
            if (state / "refuse").exists():
                return self._answer("Traceback\nValueError: " + (state / "refuse").read_text(), 400)
            return self._answer(jobs.submit(json.loads(given)))

        def do_DELETE(self) -> None:
            self._answer(jobs.jobs.pop(self.path.rpartition("/")[2], None))

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", jobs
    finally:
        for name in list(jobs.running):
            jobs.stop(name)
        server.shutdown()
        server.server_close()
