"""Run by tests/forks.py in a fork: be `python COMMAND` with the environment and the working folder of a request.

python -m forked REQUEST
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn


class Rank:
    """A rank of `pipelines.stage.launch`, forked instead of started; as much of a `subprocess.Popen` as the launcher uses."""

    def __init__(self, command: list[str], *, env: dict[str, str], **_: object) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_rank(command[command.index("--rank") :], env)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _be_rank(arguments: list[str], env: dict[str, str]) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(env)
    code = 0
    try:
        from pipelines.stage import launch

        launch.main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # as an interpreter that ends; what called the launcher must not go on here
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Be the program of the request."""
    file = Path(sys.argv[1])
    request = json.loads(file.read_text())
    file.unlink()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    logging.root.handlers.clear()  # the fork server has set logging up, as stages do
    logging.root.setLevel(logging.WARNING)
    first, *rest = request["command"]
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*(each for each in path if each and each not in sys.path), *sys.path]
    if first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        names = sys.modules["__main__"].__dict__
        exec(compile(rest[0], "<string>", "exec"), {**names, "__name__": "__main__"})
    elif first == "-m":
        sys.path.insert(0, request["cwd"])
        sys.argv = rest
        if rest[0] == "pipelines.stage.launch":
            from pipelines.stage import launch

            names = SimpleNamespace(Popen=Rank, DEVNULL=subprocess.DEVNULL)
            launch.subprocess = names  # type: ignore[assignment]  # the launcher's own: ranks start processes as ever
            launch.main(rest[1:])
        else:
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(first).parent))
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
