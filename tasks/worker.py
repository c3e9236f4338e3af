"""A flow in the process that a Prefect worker started for it: where it works, and what it does when the worker dies."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
from pathlib import Path

from pipelines.base import owner
from pipelines.base.errors import UserError

WORKING_FOLDER = "WHETSTONE_WORKING_FOLDER"
"""Environment variable: the folder in which `whetstone worker` was started."""
FLOW_RUN = "PREFECT__FLOW_RUN_ID"
"""Environment variable that Prefect sets in the process of a flow run that a worker started."""
GRACE_S = 45.0
"""What the end of an orphaned flow may take: stopping the stage is quick, telling MLflow and Prefect needs their answers."""

_bound = False


class WorkerError(UserError):
    """A worker lacks something that its flows need."""


def enter() -> None:
    """Prepare the process of a flow run that a worker started; nothing elsewhere.

    Relative paths mean what they mean in the folder in which `whetstone worker` was started; under a worker of Prefect's own, in the
    folder that holds the project folder. The flow ends in order when its worker is gone: nobody could cancel it any more, and the next
    run goes on from its last commit.

    Raises:
        WorkerError: the project folder would lie in the temporary folder in which workers run flows.
    """
    global _bound
    if not os.environ.get(FLOW_RUN) or _bound:
        return
    if not os.path.isabs(os.environ.get("WHETSTONE_HOME", "")):
        raise WorkerError(
            "WHETSTONE_HOME must name the project folder of this worker by an absolute path: start it with `whetstone worker`, or "
            "with WHETSTONE_HOME=/path/to/.whetstone prefect worker start --pool whetstone."
        )
    _bound = True
    os.chdir(os.environ.get(WORKING_FOLDER) or Path(os.environ["WHETSTONE_HOME"]).parent)
    if threading.current_thread() is threading.main_thread():
        _keep_pipes_whole()
        owner.watch(os.getppid(), _orphaned)


def _keep_pipes_whole() -> None:
    """Hold a reading end of the pipes that the worker reads, so that no print fails before its death is noticed (Linux)."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
                os.open(f"/proc/self/fd/{stream.fileno()}", os.O_RDONLY | os.O_NONBLOCK)


def _orphaned() -> None:
    """End this flow as a cancellation would: Prefect raises in the main thread, and everything on the way is closed."""
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # the worker read them; a print into a broken pipe would end the process first
        os.dup2(silence, stream.fileno())
    timer = threading.Timer(GRACE_S, lambda: os._exit(owner.ORPHANED))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)
