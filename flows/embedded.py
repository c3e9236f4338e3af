"""Flows that the command line runs itself, on the Prefect server of the environment or on an embedded one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from tasks import prefect_server


def run_flow(
    module: str,
    start: Callable[[Any], Any],
    check: Callable[[], None] = lambda: None,
    confirm: Callable[[], None] = lambda: None,
) -> Any:
    """The result of a flow.

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
    if isinstance(result, BaseException):
        raise result
    return result


def _quiet() -> None:
    """Keep tracebacks of failed runs out of the terminal: the error itself is printed at the end.

    Through the environment, because Prefect configures its loggers again when a flow starts.
    """
    for name in ("FLOW_RUNS", "TASK_RUNS"):
        os.environ.setdefault(f"PREFECT_LOGGING_LOGGERS_PREFECT_{name}_LEVEL", "CRITICAL")
