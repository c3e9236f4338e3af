"""What started a flow run, from what Prefect's server says of it."""

from __future__ import annotations

from uuid import uuid4

import pytest
from prefect.client.schemas.objects import CreatedBy, FlowRun

from flows import origin
from flows.upkeep import RESTART_OF


def run(**fields):
    return FlowRun(flow_id=uuid4(), deployment_id=uuid4(), **fields)


def by(kind):
    return CreatedBy(id=uuid4(), type=kind, display_value="nightly")


@pytest.mark.parametrize(
    ("fields", "message", "trigger"),
    [
        ({"created_by": by("SCHEDULE"), "auto_scheduled": True}, "", "schedule"),
        ({"auto_scheduled": True}, "", "schedule"),
        ({"created_by": by("AUTOMATION")}, "", "automation"),
        ({"created_by": by("AUTOMATION"), "tags": [f"{RESTART_OF}x"]}, "", "restart"),
        ({}, "Run from the Prefect UI with defaults", "hand"),
        ({}, "", "API"),
    ],
)
def test_the_trigger_of_a_run(fields, message, trigger):
    assert origin.trigger(run(**fields), message) == trigger


def test_outside_a_flow_nothing_is_known():
    assert origin.tags() == {}
