"""The stages as Prefect tasks; the work is in `tasks.stages`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.logging.handlers import APILogHandler

from pipelines.recipe.read import Recipe
from tasks import gpu
from tasks.process import StageFailed
from tasks.stages import Show, StageResult, run_stage
from tasks.store.artifacts import Artifact


def _worth_retrying(task: Any, task_run: Any, state: Any) -> bool:
    """A crash may pass; what the user must fix will not."""
    try:
        state.result()
    except StageFailed as error:
        return error.signal is not None
    except BaseException:
        return False
    return False


class _RunLog(APILogHandler):
    """Sends warnings, alarms of monitors among them, to the log of the task run in Prefect that they come from."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send it; what is said outside a task belongs to no run."""
        if TaskRunContext.get() is not None:
            super().emit(record)


@cache
def send_warnings() -> None:
    """Let Prefect show what the project warns of while a stage runs; once in a process."""
    logging.getLogger("whetstone").addHandler(_RunLog(logging.WARNING))


@task(name="stage", task_run_name="{stage}", cache_policy=NO_CACHE, persist_result=False, retries=1,
      retry_delay_seconds=2, retry_condition_fn=_worth_retrying)  # fmt: skip
def stage_task(
    stage: str,
    recipe: Recipe,
    done: dict[str, Artifact],
    parent: str | None,
    fresh: bool,
    show: Show | None,
    later: Sequence[str] = (),
    run_name: str = "",
) -> StageResult:
    """Reuse or run one stage; a killed process is started again once and goes on from its last commit."""
    send_warnings()
    return run_stage(
        recipe, stage, done, parent=parent, fresh=fresh, show=show, slot=gpu.slot, later=later, run_name=run_name
    )
