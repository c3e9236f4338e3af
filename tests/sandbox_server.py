"""A real server of sandboxes, as a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import toys

KEY = "lent-to-friends"


@contextlib.contextmanager
def serving(workers: int = 2, port: int = 0) -> Iterator[tuple[str, subprocess.Popen]]:
    """Its address, and its process."""
    command = [sys.executable, "-m", "pipelines.sandbox.server", "--port", str(port), "--workers", str(workers)]
    environment = {**os.environ, "WHETSTONE_SANDBOX_KEY": KEY, "PYTHONPATH": str(toys.ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert "listening on" in line, line
            yield line.split()[-1], process
        finally:
            process.kill()
