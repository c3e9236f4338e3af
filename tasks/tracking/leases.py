"""Which open MLflow runs are whose, so that after a crash nothing is "Running" for ever.

A claim is a small file that a pipeline holds locked while it works; the kernel lets go of the lock however the
pipeline ends. A claim that nobody holds belongs to a run that crashed, or that was stopped and may be taken up again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from pipelines.base import owner
from tasks.environment import home, tracking_uri
from tasks.tracking import heartbeat

log = logging.getLogger("whetstone.claims")


class Claim:
    """A claim that this process holds: a locked file named after its MLflow run."""

    def __init__(self, path: Path, handle: TextIO, body: dict[str, Any]) -> None:
        self.path, self.handle, self.body = path, handle, body

    @property
    def run(self) -> str:
        """The MLflow run of the pipeline."""
        return self.path.stem

    def save(self, **changes: Any) -> None:
        """Write the claim's content, with this process as its owner."""
        self.body |= {"pid": os.getpid(), "born": owner.started(os.getpid()), "host": socket.gethostname(), **changes}
        self.handle.seek(0)
        self.handle.truncate()
        self.handle.write(json.dumps(self.body))
        self.handle.flush()

    def leave(self, ended: str, *, told: bool) -> None:
        """Let go of it, so that the next start takes the run up again.

        Args:
            ended: the run's last status.
            told: whether MLflow has it.
        """
        self.save(ended=ended, told=told)
        self.handle.close()

    def release(self) -> None:
        """The run is closed for good."""
        self.path.unlink(missing_ok=True)
        self.handle.close()

    def words(self) -> str:
        """Its owner, for people."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(_since(self.body)))
        return f"process {self.body.get('pid', '?')} on {self.body.get('host', '?')}, started {since}"


def folder() -> Path:
    """Where claims lie."""
    return home() / "pipelines" / "open"


def take(run: str, mark: str) -> Claim:
    """Claim a new run of the recipe with that mark."""
    with _alone():
        path = folder() / f"{run}.json"
        handle = _locked(path)
        assert handle is not None, "nobody else knows a run this new"
        claim = Claim(path, handle, {"mark": mark, "uri": tracking_uri(), "since": time.time()})
        claim.save()
        return claim


def adopt(mark: str) -> Claim | None:
    """Take over the newest run of that recipe that nobody holds; None where there is none."""
    with _alone():
        unheld = [c for c in _unheld() if c.body.get("mark") == mark]
        newest = max(unheld, key=lambda c: _since(c.body), default=None)
        for claim in unheld:
            if claim is not newest:
                claim.handle.close()
        if newest is not None:
            newest.save(since=time.time())
        return newest


def close_abandoned() -> int:
    """Close runs of this store whose pipeline is gone, with the reason; returns how many. Asks MLflow only if there are any."""
    with _alone():
        gone = _unheld()
    closed = 0
    for claim in gone:
        if claim.body.get("ended") and claim.body.get("told", True):
            claim.handle.close()  # stopped in order: it waits for the next start of its recipe
            continue
        from tasks.tracking import api as tracking

        ended = claim.body.get("ended")
        reason = None if ended else f"{claim.words()}, is gone: killed, or the machine went down"
        try:
            known = tracking.close_abandoned(claim.run, ended or "KILLED", reason)
        except tracking.TRACKER_ERRORS as error:
            log.warning("MLflow is away; run %s stays open until the next start: %s", claim.run, error)
            claim.handle.close()
            continue
        closed += 1
        if not known or ended in ("FINISHED", "FAILED"):
            claim.release()
        else:
            claim.leave("KILLED", told=True)
    return closed


def close_unresponsive() -> int:
    """Close runs of other machines that have given no sign of life for long, with the reason; returns how many.

    A machine that comes back closes its own runs through its claims; this is for one that does not.
    """
    from tasks.tracking import api as tracking
    from tasks.tracking import open_runs as tracking_open

    try:
        late = tracking_open.unresponsive(heartbeat.UNRESPONSIVE_S)
        closed = 0
        for run, (owner_name, seconds) in late.items():
            reason = (
                f"{owner_name} has given no sign of life for {seconds / 60:.0f} minutes: killed, or its machine is gone"
            )
            closed += tracking.close_abandoned(run, "KILLED", reason)
    except tracking.TRACKER_ERRORS as error:
        log.warning("MLflow did not say which runs are unresponsive: %s", error)
        return 0
    return closed


def _unheld() -> list[Claim]:
    """Claims of this store that no process holds; now this one does."""
    claims = []
    for path in sorted(folder().glob("*.json")):
        handle = _locked(path)
        if handle is None:
            continue
        handle.seek(0)
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(handle.read())
            if isinstance(body, dict) and body.get("uri") == tracking_uri():
                claims.append(Claim(path, handle, body))
                continue
        handle.close()
    return claims


def _since(body: dict[str, Any]) -> float:
    since = body.get("since")
    return float(since) if isinstance(since, int | float) and 0 <= since < 2**33 else 0.0


def _locked(path: Path) -> TextIO | None:
    handle = open(path, "a+")  # noqa: SIM115
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Only one process looks through the claims at a time."""
    folder().mkdir(parents=True, exist_ok=True)
    with open(folder() / ".lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
