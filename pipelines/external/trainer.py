"""A trainer's process: started without a shell, watched while it runs, ended with everything it started."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.base import owner
from pipelines.base.project import THREADS, python
from pipelines.stage import launch
from pipelines.stage.owned import EXIT_FILE, GRACE_S

POLL_S = 0.2
NOT_ITS_OWN = (
    *launch.alone(), *THREADS, "RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM", "TQDM_DISABLE", "HF_DATASETS_DISABLE_PROGRESS_BARS",
    "TRANSFORMERS_VERBOSITY", "PYTHONFAULTHANDLER", "PYTHONPATH",
)  # fmt: skip
"""Environment variables of a stage's process that mean it alone: ranks, threads, quiet libraries, where the project is."""


@dataclass
class Ended:
    """How an attempt ended: `code` of its process (negative: a signal), or `hung` or `late` where it was stopped."""

    code: int
    hung: bool = False
    late: bool = False

    @property
    def why(self) -> str:
        """In words; empty where it ended well."""
        if self.late or self.hung:
            return "ran past its time limit" if self.late else "hung"
        how = f"ended with exit code {self.code}" if self.code > 0 else f"was killed by signal {-self.code}"
        return how if self.code else ""


def run(
    command: list[str],
    exit_file: Path,
    environment: Mapping[str, str],
    look: Callable[[list[str]], bool],
    *,
    hang_s: float | None = None,
    until: float | None = None,
) -> Ended:
    """Run a program to its end, its output to this process's.

    It leads a session of its own, whose members get SIGTERM and `GRACE_S` later SIGKILL when it is stopped or this process ends.

    Args:
        exit_file: where its exit code is noted.
        environment: variables beside those of this process that are its own.
        look: called several times a second with the lines of output since the last call; whether something new has come of it.
        hang_s: seconds without news after which it is stopped.
        until: the monotonic clock at which it is stopped.

    Raises:
        Exception: what `look` raises, after the program was stopped.
    """
    exit_file.unlink(missing_ok=True)
    own = {name: value for name, value in os.environ.items() if name not in NOT_ITS_OWN}
    own |= {**environment, owner.PARENT: str(os.getpid()), EXIT_FILE: str(exit_file)}
    process = subprocess.Popen(
        python("pipelines.stage.owned", *command), env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, text=True, errors="replace",
    )  # fmt: skip
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_copy, args=(process, lines), daemon=True, name="trainer-output")
    reader.start()
    ended, news_at = Ended(0), time.monotonic()
    try:
        while True:
            over = process.poll() is not None
            if over:
                reader.join(GRACE_S)
            batch = list(_taken(lines))
            if look(batch) or batch:
                news_at = time.monotonic()
            if over:
                break
            now = time.monotonic()
            ended.late = until is not None and now > until
            ended.hung = hang_s is not None and now - news_at > hang_s
            if ended.late or ended.hung:
                break
            time.sleep(POLL_S)
    finally:
        owner.end_group(process, GRACE_S + 1)
    with contextlib.suppress(OSError, ValueError):
        ended.code = int(exit_file.read_text())
        return ended
    ended.code = process.returncode or 1
    return ended


def _copy(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        lines.put(line)


def _taken(lines: queue.SimpleQueue[str]) -> Iterator[str]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield lines.get_nowait()
