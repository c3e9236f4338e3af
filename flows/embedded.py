"""Flows that the command line runs itself, on the Prefect server of the environment or on an embedded one."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from tasks import prefect_server

DRAIN_S = 5.0
"""How long the end of a command waits for logs and events of its flow to be taken."""


@contextlib.contextmanager
def server() -> Iterator[None]:
    """One server for all flows of the block: Prefect's client keeps asking the first one that its process used.

    Raises:
        ServerFailed: it does not start.
    """
    with prefect_server.embedded() as ready:
        ready()
        yield


def run_flow(
    module: str,
    start: Callable[[Any], Any],
    check: Callable[[], None] = lambda: None,
    confirm: Callable[[], None] = lambda: None,
) -> Any:
    """The result of a flow. A process that runs several has to run all of them in `server`.

    Args:
        module: the flow's module, which is imported while the server starts, and MLflow with it, whose embedded store is opened: all
            take seconds.
        start: given the module, runs the flow and returns its final state.
        check: done meanwhile, before the imports.
        confirm: done after the imports: what another process has found out meanwhile.

    Raises:
        Whatever ended the flow.
    """
    _quiet()
    with prefect_server.embedded() as ready:
        check()
        flows = importlib.import_module(module)
        tracking = importlib.import_module("tasks.tracking.api")
        confirm()
        tracking.open_embedded()
        ready()
        result = start(flows).result(raise_on_failure=False)
        _drain()
    if isinstance(result, BaseException):
        raise result
    return result


def _drain() -> None:
    """Send what Prefect's client still holds for the server, which ends next.

    At the exit its own hooks would try to, and wait more than a minute for a server that is gone.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogHandler

    APILogHandler().flush()
    EventsWorker.drain_all(timeout=DRAIN_S)


def _quiet() -> None:
    """Keep tracebacks of failed runs out of the terminal: the error itself is printed at the end.

    Through the environment, because Prefect configures its loggers again when a flow starts.
    """
    for name in ("FLOW_RUNS", "TASK_RUNS"):
        os.environ.setdefault(f"PREFECT_LOGGING_LOGGERS_PREFECT_{name}_LEVEL", "CRITICAL")
