"""What nobody else does when everybody has died: a scheduled flow that closes what is open in MLflow and Prefect.

Uploads that wait are sent, MLflow runs whose process or machine is gone are closed, flow runs that give no sign of life are
marked Crashed (Cancelled, where somebody had asked for that), and crashed ones are started again, a bounded number of times.
"""

from __future__ import annotations

import contextlib
import logging
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from pipelines.base.errors import UserError
from pipelines.recipe.settings import Event
from tasks import environment, worker
from tasks.tracking import leases, links, outbox

environment.prepare()

import httpx  # noqa: E402
from prefect import flow, get_client  # noqa: E402
from prefect.client.orchestration import SyncPrefectClient  # noqa: E402
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter  # noqa: E402
from prefect.client.schemas.objects import FlowRun, State  # noqa: E402
from prefect.client.schemas.sorting import FlowRunSort  # noqa: E402
from prefect.context import FlowRunContext  # noqa: E402
from prefect.events.filters import EventFilter  # noqa: E402
from prefect.exceptions import ObjectNotFound  # noqa: E402
from prefect.states import Cancelled, Crashed  # noqa: E402

from tasks import gpu  # noqa: E402

log = logging.getLogger("whetstone.upkeep")
PROJECT_TAG, UNRESPONSIVE, RESTART_OF = "whetstone", "whetstone:unresponsive", "whetstone:restart-of:"
"""Tags: of every deployment of this project; of a run that was unresponsive at the last look; of a run that replaces another."""
UNRESPONSIVE_S = 180
"""Three times the heartbeat of `prefect.yaml` and more; a run must be unresponsive at two looks to be given up."""
RECENT_H = 24
TOLD = "whetstone:told"
"""Tag of a run of which people have been told."""
SKIPPED = "Deployment concurrency limit reached."
"""What Prefect says of a run that it cancels because the one before is still working."""
IN_A_ROW = 3
"""Skipped runs of a deployment after which people are told, once until one is not skipped."""
WORKS, IDLE = "upkeep", "upkeep: nothing to do"
"""Names of an upkeep run: while it works, and where there was nothing to do. The next one deletes those: only the last is listed."""


@flow(name="upkeep", flow_run_name=WORKS, persist_result=False, retries=2, retry_delay_seconds=20)
def upkeep(unresponsive_after_s: int = UNRESPONSIVE_S, restarts: int = 2) -> dict[str, Any]:
    """Close what crashed processes and machines have left open.

    Args:
        unresponsive_after_s: seconds without a sign of life after which a flow run counts as unresponsive.
        restarts: how often a crashed run is started again by itself; 0 never does.
    """
    worker.enter()
    done: dict[str, Any] = {}
    flushed = outbox.flush_all(None)
    done["uploads sent"], done["uploads pending"] = flushed.sent, flushed.pending
    done["MLflow runs closed"] = leases.close_abandoned() + leases.close_unresponsive()
    with get_client(sync_client=True) as client:
        done["flow runs given up"] = give_up(client, unresponsive_after_s)
        done["people told"] = tell(client)
        done["flow runs restarted"] = restart(client, restarts)
        tidy(client, done, FlowRunContext.get())
    log.info("upkeep: %s", ", ".join(f"{name} {count}" for name, count in done.items()))
    return done


def tidy(client: SyncPrefectClient, done: dict[str, Any], context: FlowRunContext | None) -> int:
    """Name this run after what it did, and delete earlier ones that did nothing; returns how many.

    Args:
        done: what was done → how often.
        context: of this run; nothing happens outside one.
    """
    if context is None or context.flow_run is None:
        return 0
    own = context.flow_run
    work = ", ".join(f"{name} {count}" for name, count in done.items() if count and name != "uploads pending")
    client.update_flow_run(own.id, name=f"{WORKS}: {work}" if work else IDLE)
    ended = FlowRunFilter.model_validate({"state": {"type": {"any_": ["COMPLETED", "CANCELLED"]}}})
    of_flow = FlowFilter.model_validate({"id": {"any_": [own.flow_id]}})
    runs = client.read_flow_runs(flow_filter=of_flow, flow_run_filter=ended, limit=200)
    empty = [r for r in runs if r.id != own.id and (r.name == IDLE or r.start_time is None)]
    for run in empty:
        with contextlib.suppress(ObjectNotFound):  # somebody else has deleted it
            client.delete_flow_run(run.id)
    return len(empty)


def give_up(client: SyncPrefectClient, unresponsive_after_s: int) -> int:
    """Mark runs Crashed or Cancelled that are unresponsive now and were at the last look; returns how many.

    One look is not enough: after Prefect's server was away, every run has been unresponsive for as long.
    """
    limit = datetime.now(UTC) - timedelta(seconds=unresponsive_after_s)
    count = 0
    for run in _runs(client, "RUNNING", "CANCELLING"):
        tags = set(run.tags)
        if _last_sign(client, run) > limit:
            if UNRESPONSIVE in tags:
                client.update_flow_run(run.id, tags=tags - {UNRESPONSIVE})
            continue
        if UNRESPONSIVE not in tags:
            client.update_flow_run(run.id, tags=tags | {UNRESPONSIVE})
            continue
        words = f"no sign of life for more than {unresponsive_after_s} s: its worker or its machine is gone"
        cancelling = run.state is not None and run.state.type.value == "CANCELLING"
        state: State[Any] = Cancelled(message=words) if cancelling else Crashed(message=words)
        client.set_flow_run_state(run.id, state, force=True)
        count += 1
    return count


def tell(client: SyncPrefectClient) -> int:
    """Tell people of crashed runs and of deployments whose runs are skipped again and again, as the runs' recipes say; returns how many.

    A process that died cannot say so itself, and a run that never began has nothing to say it with.
    """
    recent = datetime.now(UTC) - timedelta(hours=RECENT_H)
    ended = _runs(client, "RUNNING", "COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    crashed = [
        r for r in ended if r.state and r.state.type.value == "CRASHED" and (r.end_time is None or r.end_time > recent)
    ]
    count = 0
    for run in crashed:
        words = (run.state.message or "") if run.state else ""
        count += _tell(client, run, "crashed", (words, "Upkeep starts it again, at most so often."))
    for runs in _by_deployment(ended).values():
        streak = list(takewhile(_was_skipped, runs))
        if len(streak) >= IN_A_ROW and not any(TOLD in run.tags for run in streak):
            words = f"{len(streak)} runs in a row were skipped, because an earlier one is still working"
            count += _tell(client, streak[0], "skipped", (words,))
    return count


def _by_deployment(runs: list[FlowRun]) -> dict[Any, list[FlowRun]]:
    """Runs whose time has come, the last first."""
    grouped: dict[Any, list[FlowRun]] = {}
    for run in sorted(runs, key=lambda run: run.expected_start_time or run.created or datetime.now(UTC), reverse=True):
        grouped.setdefault(run.deployment_id, []).append(run)
    return grouped


def _was_skipped(run: FlowRun) -> bool:
    return run.state is not None and run.state.type.value == "CANCELLED" and run.state.message == SKIPPED


def _tell(client: SyncPrefectClient, run: FlowRun, event: Event, lines: tuple[str, ...]) -> bool:
    """Tell people of a run once; whether its recipe says whom."""
    if TOLD in run.tags or not (run.parameters or {}).get("recipe"):
        return False
    from pipelines.recipe.read import read_recipe
    from tasks import notices

    try:
        recipe = read_recipe(run.parameters["recipe"], run.parameters.get("overrides"))
    except UserError as error:
        log.warning("nobody was told of %s (%s): %s", run.name, event, error)
        return False
    if recipe.notify is None or event not in recipe.notify.events:
        return False
    page = links.flow_run(str(run.id))
    notices.tell(
        recipe.notify,
        notices.Message(event, f"{recipe.name}, flow run {run.name}", (*lines, *([page] if page else []))),
    )
    notices.finish()
    client.update_flow_run(run.id, tags={*run.tags, TOLD})
    return True


def restart(client: SyncPrefectClient, limit: int) -> int:
    """Start crashed runs again with their parameters, unless something has been started in their place; returns how many."""
    recent = datetime.now(UTC) - timedelta(hours=RECENT_H)
    crashed = [r for r in _runs(client, "CRASHED") if r.end_time is None or r.end_time > recent]
    if not crashed or limit < 1:
        return 0
    others = _runs(client, "SCHEDULED", "PENDING", "RUNNING", "COMPLETED", "CRASHED", "CANCELLED", "FAILED")
    count = 0
    for run in crashed:
        origin = next((t.removeprefix(RESTART_OF) for t in run.tags if t.startswith(RESTART_OF)), str(run.id))
        again = [r for r in others if f"{RESTART_OF}{origin}" in r.tags]
        replaced = any(_takes_over(other, run) for other in others)
        if replaced or len(again) >= limit or run.deployment_id is None:
            continue
        of_attempt = (UNRESPONSIVE, TOLD, RESTART_OF, gpu.HOLDS, gpu.WAITS)
        tags = {t for t in run.tags if not t.startswith(of_attempt)} | {f"{RESTART_OF}{origin}"}
        key = f"{RESTART_OF}{origin}:{len(again)}"  # two upkeeps at once start one
        client.create_flow_run_from_deployment(
            run.deployment_id, parameters=run.parameters, tags=tags, idempotency_key=key
        )
        count += 1
    return count


def _takes_over(other: FlowRun, run: FlowRun) -> bool:
    """Whether `other` does the work of the crashed `run`: the same, asked for later, and not crashed or refused itself."""
    same = other.deployment_id == run.deployment_id and other.parameters == run.parameters and other.id != run.id
    if not same or other.created is None or run.created is None or other.state is None:
        return False
    later = other.created > run.created
    waits = other.state.type.value == "SCHEDULED" and (other.expected_start_time or other.created) > datetime.now(
        UTC
    ) + timedelta(minutes=5)
    return later and not waits and other.state.type.value not in ("CANCELLED",)


def _last_sign(client: SyncPrefectClient, run: FlowRun) -> datetime:
    """When a run was last heard of: its newest event, or its start."""
    started = run.start_time or run.created or datetime.now(UTC)
    question = EventFilter.model_validate(
        {"resource": {"id": [f"prefect.flow-run.{run.id}"]}, "occurred": {"since": started}, "order": "DESC"}
    )
    with contextlib.suppress(httpx.HTTPStatusError):
        events = client.read_events(question, limit=1).events
        return max([started, *(e.occurred for e in events)])
    return datetime.now(UTC)  # the server does not say: nobody is given up on a guess


def _runs(client: SyncPrefectClient, *states: str) -> list[FlowRun]:
    of_project = DeploymentFilter.model_validate({"tags": {"all_": [PROJECT_TAG]}})
    wanted = FlowRunFilter.model_validate({"state": {"type": {"any_": list(states)}}})
    newest = FlowRunSort.EXPECTED_START_TIME_DESC
    return client.read_flow_runs(flow_run_filter=wanted, deployment_filter=of_project, sort=newest, limit=200)
