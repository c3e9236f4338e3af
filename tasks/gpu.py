"""One GPU stage at a time over all deployments of a Prefect server: its own concurrency limit `gpu`."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.runtime import deployment, flow_run

from pipelines.recipe.stage_kind import kind_named
from tasks.worker import WorkerError

log = logging.getLogger("whetstone.gpu")
LIMIT = "gpu"
LEASE_S = 300.0
"""After so long the place of a killed holder is free again."""
AWAY_S, RETRY_S = 600.0, 5.0
"""For how long a server that is away is asked for a place, and how often any server is."""
REMIND_S = 600.0
"""How often a stage that waits says so again, where nobody else has taken the place meanwhile."""
HOLDS, WAITS = "whetstone:gpu:holds", "whetstone:gpu:waits"
"""Tags of a flow run while a stage of it has the place, and while one waits for it: Prefect's list of runs can be filtered by them."""

_guard = threading.Lock()
_counts = {HOLDS: 0, WAITS: 0}


@contextlib.contextmanager
def slot(kind: str) -> Iterator[None]:
    """Hold a place on the GPU while a deployed stage computes; stages of a local run and of the CPU hold none.

    A stage that waits says for whom, in the log of its run and by a tag of the flow run. A server that goes away meanwhile does not
    stop the stage.

    Raises:
        WorkerError: the server has no such limit.
    """
    if not kind_named(kind).gpu or deployment.id is None:
        yield
        return
    held = contextlib.ExitStack()
    _acquire(kind, held)
    try:
        with _tagged(HOLDS):
            yield
    finally:
        try:
            held.close()
        except httpx.HTTPError as error:
            log.warning("%s: its place on the GPU was not given back (%s); its lease ends it", kind, error)


def _acquire(kind: str, held: contextlib.ExitStack) -> None:
    """Enter the limit, however long that takes."""
    began = time.monotonic()
    away_since: float | None = None
    with contextlib.ExitStack() as waiting:
        reminder = _Reminder(kind)
        while True:
            place = concurrency(
                LIMIT,
                occupy=1,
                max_retries=0,
                lease_duration=LEASE_S,
                strict=True,
                raise_on_lease_renewal_failure=False,
            )
            try:
                held.enter_context(place)
                break
            except (ConcurrencySlotAcquisitionError, httpx.TransportError) as error:
                why = error if isinstance(error, httpx.TransportError) else error.__cause__
            if isinstance(why, httpx.TransportError):
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > AWAY_S:
                    raise why
                log.warning("%s: Prefect does not answer (%s); asked again for a place on the GPU", kind, why)
            elif isinstance(why, httpx.HTTPStatusError) and why.response.status_code == httpx.codes.LOCKED:
                away_since = None
                if not reminder.told:
                    waiting.enter_context(_tagged(WAITS))
                reminder.say()
            else:
                raise WorkerError(
                    f"the Prefect server has no concurrency limit {LIMIT!r} ({why}): run `whetstone deploy`."
                )
            time.sleep(RETRY_S)
    if reminder.told:
        log.warning("%s: has a place on the GPU after %.0f s", kind, time.monotonic() - began)


class _Reminder:
    """Says for whom a stage waits: at once, when that changes, and every `REMIND_S`."""

    def __init__(self, kind: str) -> None:
        self.kind, self.told, self.when, self.unnamed = kind, "", 0.0, 0

    def say(self) -> None:
        who = holders()
        self.unnamed = 0 if who else self.unnamed + 1
        if self.unnamed == 1:  # who takes the place has its tag a moment later, and who leaves it loses the tag first
            who = self.told or "another run"
        if self.unnamed > 1:
            who = f"a run that ended without giving it back; it is free again after {LEASE_S:.0f} s at most"
        if who != self.told or time.monotonic() - self.when > REMIND_S:
            self.told, self.when = who, time.monotonic()
            log.warning("%s: waits for a place on the GPU, held by %s", self.kind, who)


def holders() -> str:
    """The flow runs that hold the places, by name and id; empty where Prefect lists none."""
    wanted = FlowRunFilter.model_validate(
        {"tags": {"all_": [HOLDS]}, "state": {"type": {"any_": ["RUNNING", "CANCELLING"]}}}
    )
    try:
        with get_client(sync_client=True) as client:
            runs = client.read_flow_runs(flow_run_filter=wanted)
    except httpx.HTTPError as error:
        return f"a run that Prefect does not name ({error})"
    return ", ".join(f"{run.name} (flow run {run.id})" for run in runs)


@contextlib.contextmanager
def _tagged(tag: str) -> Iterator[None]:
    """Give the flow run at hand a tag while any stage of it is in the block."""
    _count(tag, 1)
    try:
        yield
    finally:
        _count(tag, -1)


def _count(tag: str, change: int) -> None:
    with _guard:
        before, _counts[tag] = _counts[tag], _counts[tag] + change
        if bool(before) == bool(_counts[tag]) or not flow_run.id:
            return
        try:
            with get_client(sync_client=True) as client:
                run = client.read_flow_run(UUID(str(flow_run.id)))
                tags = {*run.tags, tag} if change > 0 else {*run.tags} - {tag}
                client.update_flow_run(run.id, tags=tags)
        except httpx.HTTPError as error:
            log.info("Prefect did not take the tag %s: %s", tag, error)
