"""The process of a mirror: it sends the feed of a stage to a tracker, and whatever happens to it happens to nobody else.

    python -m tasks.tracking.mirror.process CLIENT ENTRY [ENTRY ...]

Several entries are of stages that have ended, and are served one after another. ENTRY holds `job.json` and the feed; `finish.json` says
that the stage has ended. What has become of the mirror is in `CLIENT.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from pipelines.base import owner
from pipelines.base.files import read_object, write_atomic
from pipelines.base.secrets import redact
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
    from tasks.tracking.mirror.clients import CLIENTS  # the state of mirrors is read where nothing is sent

    state = state_of(entry, name)
    job = read_object(entry / JOB) or {}
    reader = Reader(entry)
    client = CLIENTS[name](job, state["sent"])
    told: set[str] = set()
    saved = time.monotonic()
    while True:
        alone = orphaned.is_set()
        body = _ended(entry)
        for point in reader.new():  # what comes before finish.json is whole
            told.update(point["values"])
            if reader.points > client.held:
                client.send(reader.points - 1, point)
            if reader.points > state["sent"] and time.monotonic() - saved > EVERY_S:
                saved = _progress(entry, name, state, reader.points)
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
            saved = _progress(entry, name, state, reader.points)
        orphaned.wait(EVERY_S)


def _progress(entry: Path, name: str, state: dict[str, Any], sent: int) -> float:
    state |= {"sent": sent, "problem": ""}
    _save(entry, name, state)
    return time.monotonic()


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


def count_failure(entry: Path, name: str, problem: str) -> None:
    """Note that a mirror has failed once more."""
    state = state_of(entry, name)
    _save(entry, name, state | {"problem": redact(problem)[:240], "failures": state["failures"] + 1})


def main(name: str, entries: list[Path]) -> int:
    """Serve a mirror of each stage; 1 where one failed, with the reason in its state."""
    with contextlib.suppress(OSError):
        os.nice(10)
    orphaned = threading.Event()
    owner.watch(int(os.environ.get(owner.PARENT) or os.getppid()), lambda: _alone(orphaned))
    code = 0
    for entry in entries:
        if orphaned.is_set() or not (entry / JOB).exists() or (len(entries) > 1 and not (entry / FINISH).exists()):
            continue  # the next run goes on; it is gone; its stage goes on
        if entry != entries[0]:
            _write_output_to(entry / f"{name}.log")
        code = max(code, _serve_stage(name, entry, orphaned))
    return code


def _write_output_to(log: Path) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with open(log, "ab") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)


def _serve_stage(name: str, entry: Path, orphaned: threading.Event) -> int:
    """Serve one mirror; 1 where it failed."""
    from filelock import FileLock, Timeout

    lock = FileLock(entry / f"{name}.lock", fallback_to_soft=False)
    try:
        with lock.acquire(LOCK_S):
            if (entry / JOB).exists() and not state_of(entry, name)["done"]:
                serve(name, entry, orphaned)
    except Timeout:  # another pipeline's process sends it
        return 0
    except BaseException as error:  # a client may raise whatever it likes, SystemExit too
        text = (str(error).strip().splitlines() or [""])[0]
        count_failure(entry, name, f"{type(error).__name__}: {text}")
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = 1
    try:
        code = main(sys.argv[1], [Path(entry) for entry in sys.argv[2:]])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a client's own exit handlers might wait for a server
