"""One GPU stage at a time over all deployments of a Prefect server: its own concurrency limit `gpu`."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

import httpx
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.runtime import deployment

from pipelines.recipe.stage_kind import kind_named
from tasks.worker import WorkerError

log = logging.getLogger("whetstone.gpu")
LIMIT = "gpu"
LEASE_S = 300.0
"""After so long the place of a killed holder is free again."""
AWAY_S, RETRY_S = 600.0, 5.0
"""For how long, and how often, a server that is away is asked for a place."""


@contextlib.contextmanager
def slot(kind: str) -> Iterator[None]:
    """Hold a place on the GPU while a deployed stage computes; stages of a local run and of the CPU hold none.

    A server that goes away meanwhile does not stop the stage.

    Raises:
        WorkerError: the server has no such limit.
    """
    if not kind_named(kind).gpu or deployment.id is None:
        yield
        return
    held = contextlib.ExitStack()
    began = time.monotonic()
    while True:
        place = concurrency(LIMIT, occupy=1, lease_duration=LEASE_S, strict=True, raise_on_lease_renewal_failure=False)
        try:
            held.enter_context(place)
            break
        except ConcurrencySlotAcquisitionError as error:
            raise WorkerError(
                f"the Prefect server has no concurrency limit {LIMIT!r} ({error}): run `whetstone deploy`."
            ) from None
        except httpx.TransportError as error:
            if time.monotonic() - began > AWAY_S:
                raise
            log.warning("%s: Prefect does not answer (%s); asked again for a place on the GPU", kind, error)
            time.sleep(RETRY_S)
    try:
        yield
    finally:
        try:
            held.close()
        except httpx.HTTPError as error:
            log.warning("%s: its place on the GPU was not given back (%s); its lease ends it", kind, error)
