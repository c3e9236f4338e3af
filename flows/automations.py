"""Prefect's own automations for this project: what its server does by itself, even while no worker lives."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from tasks import environment

environment.prepare()

import httpx  # noqa: E402
from prefect.client.orchestration import SyncPrefectClient  # noqa: E402
from prefect.client.schemas.objects import StateType  # noqa: E402
from prefect.events.actions import ChangeFlowRunState, RunDeployment, SendNotification  # noqa: E402
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture  # noqa: E402
from prefect.events.schemas.events import ResourceSpecification  # noqa: E402
from prefect.exceptions import ObjectNotFound  # noqa: E402

from flows.upkeep import PROJECT_TAG  # noqa: E402
from pipelines.base.errors import UserError  # noqa: E402

UNRESPONSIVE, CRASHED = (
    "whetstone: a flow run without heartbeats is Crashed",
    "whetstone: after a crash, upkeep at once",
)
HEARTBEAT_S = 30
"""As `prefect.yaml` sets it for every flow run of the project."""
UNRESPONSIVE_S = 300
"""Ten heartbeats. Shorter than this the server may be away, and no run that works is taken for a crashed one."""
ENDED = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended", "AwaitingRetry")
UPKEEP = "upkeep/every-ten-minutes"
TELLS = "whetstone: tell of crashed and failed flow runs"
BODY = "{{ flow_run.name }} is {{ flow_run.state.name }}: {{ flow_run.state.message }}\n{{ flow_run|ui_url }}"


def create(client: SyncPrefectClient, unresponsive_after_s: int = UNRESPONSIVE_S) -> list[str]:
    """Make both automations, in place of those of the same names; returns the names.

    Args:
        client: of a server that holds the project's deployments.
        unresponsive_after_s: seconds without a heartbeat after which a flow run is marked Crashed; three heartbeats at least, or
            healthy runs are.
    """
    run, project = _runs_of_project()
    unresponsive = AutomationCore(
        name=UNRESPONSIVE,
        description="Its worker or its machine is gone, and nobody is left to say so.",
        trigger=EventTrigger(
            posture=Posture.Proactive, match=run, match_related=project, for_each={"prefect.resource.id"},
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *(f"prefect.flow-run.{state}" for state in ENDED)},
            threshold=1, within=timedelta(seconds=unresponsive_after_s),
        ),
        actions=[
            ChangeFlowRunState(
                name="Crashed", state=StateType.CRASHED,
                message=f"no heartbeat for {unresponsive_after_s} s: its worker or its machine is gone",
            )
        ],
    )  # fmt: skip
    upkeep = client.read_deployment_by_name(UPKEEP)
    crashed = AutomationCore(
        name=CRASHED,
        description="Upkeep closes what the run left open and starts it again, at most so often.",
        trigger=EventTrigger(
            posture=Posture.Reactive, match=run, match_related=project, expect={"prefect.flow-run.Crashed"}, threshold=1
        ),
        actions=[RunDeployment(source="selected", deployment_id=upkeep.id)],
    )
    _replace(client, unresponsive, crashed)
    return [UNRESPONSIVE, CRASHED]


def tell(client: SyncPrefectClient, block: UUID) -> str:
    """Have the server itself tell people of crashed and failed flow runs, even while no worker lives; returns the automation's name.

    Args:
        block: id of a notification block, which has the address; nothing of it is stored elsewhere.
    """
    run, project = _runs_of_project()
    automation = AutomationCore(
        name=TELLS,
        description="What no process can say of itself: that it is gone, or that it never read its recipe.",
        trigger=EventTrigger(
            posture=Posture.Reactive, match=run, match_related=project, threshold=1,
            expect={"prefect.flow-run.Crashed", "prefect.flow-run.Failed"},
        ),
        actions=[SendNotification(block_document_id=block, subject="whetstone", body=BODY)],
    )  # fmt: skip
    _replace(client, automation)
    return TELLS


def block_id(client: SyncPrefectClient, name: str) -> UUID:
    """The notification block of a name such as `slack-webhook/nightly`.

    Raises:
        UserError: the server has none.
    """
    kind, _, own = name.partition("/")
    try:
        return client.read_block_document_by_name(own, kind).id
    except (ObjectNotFound, httpx.HTTPStatusError):
        raise UserError(
            f"--notify-block {name}",
            "the Prefect server has no such block",
            "Make one on its page, under Blocks (Slack Webhook and others), and write it as TYPE/NAME: slack-webhook/nightly.",
        ) from None


def _runs_of_project() -> tuple[ResourceSpecification, ResourceSpecification]:
    """Flow runs, and the tag of the project's deployments that they are related to."""
    project = {"prefect.resource.id": f"prefect.tag.{PROJECT_TAG}", "prefect.resource.role": "tag"}
    return ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}), ResourceSpecification(project)


def _replace(client: SyncPrefectClient, *automations: AutomationCore) -> None:
    """Create them in place of those of the same names."""
    for automation in automations:
        for present in client.read_automations_by_name(automation.name):
            client.delete_automation(present.id)
        client.create_automation(automation)
