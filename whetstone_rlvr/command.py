"""A command in a process of its own, whose result or error is returned.

What starts flows is done so: Prefect reads its settings once in a process and calls its server otherwise where an event loop runs, as in a
notebook, and a notebook's process lives through many runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from pipelines.base import owner
from pipelines.base.errors import Problem, UserError
from pipelines.base.project import python

TAIL = 40
"""Last lines of a command's messages, for the error of one that ended without a result."""


class CommandFailed(UserError):
    """What a command says that a person can fix, with its records."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(problems=[Problem.of_record(record) for record in told["problems"]])
        self.kind = str(told["error"]["kind"])
        self.message = str(told["error"]["message"])

    def __str__(self) -> str:
        return self.message


def run(words: list[str], progress: Callable[[str], None] | None = None) -> Any:
    """What `whetstone WORDS --json` prints, as an object.

    Args:
        words: the command and its options.
        progress: called from another thread with each line that the command says meanwhile.

    Raises:
        CommandFailed: the command refused, or a stage failed.
        RuntimeError: it ended as nobody foresaw; the message has its last lines.
        KeyboardInterrupt: as the caller was interrupted; the command has been stopped then.
    """
    child = subprocess.Popen(
        python("flows.cli.owned", *words, "--json"), env={**os.environ, owner.PARENT: str(os.getpid())},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stderr is not None
    last: deque[str] = deque(maxlen=TAIL)
    listener = threading.Thread(target=_listen, args=[child.stderr, last, progress], daemon=True)
    listener.start()
    with child.stdout:
        try:
            printed = child.stdout.read()
            child.wait()
        except BaseException:
            child.send_signal(signal.SIGTERM)  # SIGINT may be ignored, as below nohup
            child.wait()
            raise
    listener.join()
    return _result(child.returncode, printed, "\n".join(last))


def _listen(messages: IO[str], last: deque[str], progress: Callable[[str], None] | None) -> None:
    with messages:
        for line in messages:
            last.append(line.rstrip("\n"))
            if progress is not None:
                progress(last[-1])


def _result(code: int, printed: str, messages: str) -> Any:
    try:
        told = json.loads(printed)
    except ValueError:
        told = None
    if code == 0 and told is not None:
        return told
    if code > 0 and isinstance(told, dict) and told.get("problems") and not told["error"].get("unforeseen"):
        raise CommandFailed(told)
    raise RuntimeError(f"the command ended with code {code}.\n{messages}")
