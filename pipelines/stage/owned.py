"""Run a program of somebody else's tied to our life: `python -m pipelines.stage.owned COMMAND...`.

Start it in a session of its own, with this process's pid in the environment variable `owner.PARENT`. When that process
ends, however, or when this one gets SIGTERM, the program is asked to leave and then killed with everything it started.
This process ends with its group, so the program's exit code goes to the file that `EXIT_FILE` names; without one it is printed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from pipelines.base import owner

EXIT_FILE = "WHETSTONE_EXIT_FILE"
"""Environment variable: a file for the program's exit code."""
GRACE_S = 5.0
"""From SIGTERM to SIGKILL; a program that leaves by itself removes its shared memory."""


def main() -> None:
    """Run the command to its end, and leave nothing of its process group behind."""
    parent, exit_file = int(os.environ.pop(owner.PARENT)), os.environ.pop(EXIT_FILE, None)
    ended = threading.Event()
    child: subprocess.Popen[bytes] | None = None

    def stop(*_: Any) -> NoReturn:
        if child is not None and not ended.is_set():
            child.terminate()
            deadline = time.monotonic() + GRACE_S
            while time.monotonic() < deadline and owner.running(child.pid):
                time.sleep(0.05)
        _kill_group()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner.bind(parent, signal.SIGTERM, stop)
    child = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=lambda: owner.die_with_parent(signal.SIGKILL)
    )
    code = child.wait()
    ended.set()
    if exit_file is not None:
        Path(exit_file).write_text(str(code))
    else:
        print(f"{sys.argv[1]} ended with code {code}", file=sys.stderr, flush=True)
    _kill_group()


def _kill_group() -> NoReturn:
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(owner.ORPHANED)


if __name__ == "__main__":
    main()
