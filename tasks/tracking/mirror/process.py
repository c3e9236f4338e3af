"""The process of one mirror of one stage: it sends the feed to a tracker, and whatever happens to it happens to nobody else.

    python -m tasks.tracking.mirror.process CLIENT ENTRY

ENTRY holds `job.json` and the feed; `finish.json` says that the stage has ended. What has become of the mirror is in `CLIENT.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pipelines.base import owner
from pipelines.base.files import read_object, write_atomic
from pipelines.base.secrets import redact
from tasks.tracking.mirror.clients import CLIENTS
from tasks.tracking.mirror.feed import Reader

JOB, FINISH = "job.json", "finish.json"
EVERY_S = 0.5
GRACE_S = 10.0
"""How long the process goes on once its pipeline's is gone."""
LOCK_S = 20.0
"""How long it waits for another one that serves the same mirror: that one's pipeline has just gone."""


def state_file(entry: Path, name: str) -> Path:
    """What has become of a mirror: `sent` points, `done`, `problem`."""
    return entry / f"{name}.json"


def state_of(entry: Path, name: str) -> dict[str, Any]:
    """The body of `state_file`, with everything in it."""
    kept = read_object(state_file(entry, name), sent=int, done=bool, problem=str, failures=int) or {}
    return {"sent": 0, "done": False, "problem": "", "failures": 0} | kept


def serve(name: str, entry: Path, orphaned: threading.Event) -> None:
    """Send what the feed holds until the stage has ended or the pipeline's process is gone."""
    state = state_of(entry, name)
    job = read_object(entry / JOB) or {}
    reader = Reader(entry)
    client = CLIENTS[name](job, state["sent"])
    told: set[str] = set()
    while True:
        alone = orphaned.is_set()
        body = _ended(entry)
        for point in reader.new():  # what comes before finish.json is whole
            told.update(point["values"])
            if reader.points > client.held:
                client.send(reader.points - 1, point)
        if body is not None or alone:
            ended = body or {"status": "KILLED", "scores": {}, "about": {}}
            scores = {name: value for name, value in ended["scores"].items() if name not in told}
            client.finish(ended["status"], scores, ended["about"])
            _save(
                entry,
                name,
                state | {"sent": reader.points, "done": body is not None and _ended(entry) == body, "problem": ""},
            )
            return
        if state["sent"] != reader.points:
            state |= {"sent": reader.points, "problem": ""}
            _save(entry, name, state)
        orphaned.wait(EVERY_S)


def _ended(entry: Path) -> dict[str, Any] | None:
    """How the stage ended; None while it runs, which it may do again."""
    return read_object(entry / FINISH, status=str, scores=dict, about=dict)


def _save(entry: Path, name: str, state: dict[str, Any]) -> None:
    write_atomic(state_file(entry, name), json.dumps(state), durable=False)


def _alone(orphaned: threading.Event) -> None:
    """Let the client end what it does, but not for ever."""
    orphaned.set()
    time.sleep(GRACE_S)
    os._exit(owner.ORPHANED)


def main(name: str, entry: Path) -> int:
    """Serve one mirror; 1 where it failed, with the reason in its state."""
    from filelock import FileLock, Timeout

    with contextlib.suppress(OSError):
        os.nice(10)
    orphaned = threading.Event()
    owner.watch(int(os.environ.get(owner.PARENT) or os.getppid()), lambda: _alone(orphaned))
    lock = FileLock(entry / f"{name}.lock", fallback_to_soft=False)
    try:
        with lock.acquire(LOCK_S):
            if (entry / JOB).exists() and not state_of(entry, name)["done"]:
                serve(name, entry, orphaned)
        return 0
    except Timeout:  # another pipeline's process sends it
        return 0
    except BaseException as error:  # a client may raise whatever it likes, SystemExit too
        text = redact((str(error).strip().splitlines() or [""])[0])[:200]
        state = state_of(entry, name)
        problem = f"{type(error).__name__}: {text}"
        _save(entry, name, state | {"problem": problem, "failures": state["failures"] + 1})
        raise


if __name__ == "__main__":
    code = 1
    try:
        code = main(sys.argv[1], Path(sys.argv[2]))
    finally:
        sys.stdout.flush()
        if code:
            import traceback

            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)  # a client's own exit handlers might wait for a server
