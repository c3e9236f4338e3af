"""What started a flow run: a schedule, a person, a program, an automation, or upkeep after a crash. As tags of its run in MLflow."""

from __future__ import annotations

import logging

import httpx
from prefect import get_client, runtime
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from flows.upkeep import RESTART_OF
from tasks.tracking import links
from tasks.tracking.record import DEPLOYMENT, FLOW_RUN, FLOW_RUN_URL, TRIGGER

log = logging.getLogger("whetstone.origin")
OF_CREATORS = {"SCHEDULE": "schedule", "AUTOMATION": "automation"}
UI = "Run from the Prefect UI"
"""How the message begins that Prefect's page gives the first state of a run that somebody starts there."""


def tags() -> dict[str, str]:
    """The tags of the flow run at hand: what started it, its id, its deployment, and its page where the server has one."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return {}
    run = context.flow_run
    told = {TRIGGER: "hand", FLOW_RUN: str(run.id)}
    if page := links.flow_run(str(run.id)):
        told[FLOW_RUN_URL] = page
    if run.deployment_id is None:
        return told
    try:
        told[DEPLOYMENT] = f"{runtime.flow_run.flow_name}/{runtime.deployment.name}"
        told[TRIGGER] = trigger(run, _first_message(run))
    except httpx.HTTPError as error:
        log.warning("Prefect does not say what started this run: %s", error)
    return told


def trigger(run: FlowRun, first_message: str = "") -> str:
    """What started a run of a deployment.

    Args:
        first_message: of its first state; Prefect's page writes one, its command line and programs do not.
    """
    if any(tag.startswith(RESTART_OF) for tag in run.tags):
        return "restart"
    if run.created_by is not None and run.created_by.type in OF_CREATORS:
        return OF_CREATORS[run.created_by.type]
    if run.auto_scheduled:
        return "schedule"
    return "hand" if first_message.startswith(UI) else "API"


def _first_message(run: FlowRun) -> str:
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(run.id)
    first = min(states, key=lambda state: state.timestamp, default=None)
    return (first.message if first else None) or ""
