"""`subprocess.Popen` and `run` for Python programs that import torch and transformers: forks of a process that has imported both.

Importing them takes three seconds of processor time, and the tests start hundreds of stages and ranks. The fork server is the product's own
(`pipelines/stage/fork_server.py`); where it cannot be, and for what depends on how a process is started, there is `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Any

import toys

from pipelines.stage import fork_server

LIBRARIES = (
    "numpy",
    "torch",
    "transformers.models.llama.modeling_llama",
    "safetensors.torch",
    "pyarrow.parquet",
    "xxhash",
    "jinja2",
)
OF_COMMANDS = ("torch", "mlflow", "pandas", "sqlalchemy", "alembic.migration")
"""What commands import; Prefect reads its settings when it is imported, so it is left to them."""
_servers: list[fork_server.ForkServer] = []


class Popen:
    """A fork that runs `[sys.executable, "-m" | "-c" | FILE, ...]`, the leader of a session; arguments as of `subprocess.Popen`."""

    def __init__(
        self, command: Sequence[object], *, cwd: os.PathLike | str | None = None, env: dict[str, str] | None = None, stdout: Any = None,
        stderr: Any = None, text: bool = False, start_new_session: bool = True, libraries: Sequence[str] = LIBRARIES,
    ) -> None:  # fmt: skip
        assert command[0] == sys.executable and start_new_session
        self.args = [str(argument) for argument in command]
        request = {
            "command": self.args[1:],
            "cwd": os.path.abspath(cwd or os.getcwd()),
            "environment": env or dict(os.environ),
        }
        with contextlib.ExitStack() as stack, tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump(request, file)
            output, self.stdout = _stream(stdout, 1, None, text, stack)
            errors, self.stderr = _stream(stderr, 2, output, text, stack)
            file.flush()
            self._fork = _server().fork(["forked", file.name], libraries, output, errors)
        self.pid = self._fork.pid

    @property
    def returncode(self) -> int | None:
        return self._fork.returncode

    def poll(self) -> int | None:
        return self._fork.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._fork.wait(timeout)

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """What it wrote to its pipe, once it has ended; only one of its streams may be one."""
        assert self.stdout is None or self.stderr is None
        streams = [None if each is None else each.read() for each in (self.stdout, self.stderr)]
        self.wait(timeout)
        return streams[0], streams[1]


def run(
    command: Sequence[object], *, capture_output: bool = False, text: bool = False, timeout: float | None = None, check: bool = False,
    stdout: Any = None, stderr: Any = None, libraries: Sequence[str] = LIBRARIES, **options: Any,
) -> subprocess.CompletedProcess:  # fmt: skip
    """As `subprocess.run`; what it writes goes through files."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        streams = (output, errors) if capture_output else (stdout, stderr)
        process = Popen(command, stdout=streams[0], stderr=streams[1], libraries=libraries, **options)
        try:
            process.wait(timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        written: list[Any] = [None, None]
        if capture_output:
            written = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in (output, errors)]
            written = [each.decode() for each in written] if text else written
    done = subprocess.CompletedProcess(process.args, process.returncode or 0, *written)
    if check:
        done.check_returncode()
    return done


def _server() -> fork_server.ForkServer:
    if not _servers or _servers[-1]._process.poll() is not None:
        folder = os.getcwd()
        os.chdir(toys.ROOT)  # a working folder that a test removes must not be the server's
        try:
            _servers.append(fork_server.ForkServer(toys.environment(OMP_NUM_THREADS="1")))
        finally:
            os.chdir(folder)
        atexit.register(_servers[-1].end)
    return _servers[-1]


def _stream(
    wanted: Any, own: int, output: int | None, text: bool, stack: contextlib.ExitStack
) -> tuple[int, IO[Any] | None]:
    """A descriptor to write to, and the end to read where it is a pipe."""
    if wanted == subprocess.PIPE:
        reader, writer = os.pipe()
        stack.callback(os.close, writer)
        return writer, os.fdopen(reader, "r" if text else "rb")
    if wanted == subprocess.STDOUT:
        assert output is not None
        return output, None
    if wanted == subprocess.DEVNULL:
        return stack.enter_context(open(os.devnull, "wb")).fileno(), None
    return (own if wanted is None else wanted.fileno()), None
