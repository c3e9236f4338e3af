"""Upkeep's decisions about flow runs, with Prefect's own objects and a client that remembers what it was told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Running, Scheduled

from flows import upkeep

DEPLOYMENT = uuid4()
NOW = datetime.now(UTC)


def flow_run(state, minutes_ago=60.0, **fields):
    created = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    about = {"flow_id": uuid4(), "deployment_id": DEPLOYMENT, "parameters": {"recipe": "r"}, "tags": ["whetstone"]}
    return FlowRun(
        **{"id": uuid4(), "created": created, "start_time": created, "state": state, "end_time": NOW, **about, **fields}
    )


class Client:
    """Holds flow runs; `signs` are their last events."""

    def __init__(self, *runs):
        self.runs, self.signs, self.away = list(runs), {}, False

    def read_flow_runs(self, flow_run_filter, deployment_filter, sort, limit):
        types = {t.value for t in flow_run_filter.state.type.any_}
        return [r for r in self.runs if r.state.type.value in types]

    def read_events(self, question, limit):
        if self.away:
            raise httpx.HTTPStatusError("503", request=None, response=None)
        (resource,) = question.resource.id
        last = self.signs.get(resource.rpartition(".")[2])
        return SimpleNamespace(events=[SimpleNamespace(occurred=last)] if last else [])

    def update_flow_run(self, run, tags):
        next(r for r in self.runs if r.id == run).tags = list(tags)

    def set_flow_run_state(self, run, state, force):
        assert force
        next(r for r in self.runs if r.id == run).state = state

    def create_flow_run_from_deployment(self, deployment, parameters, tags, idempotency_key):
        assert all(idempotency_key != getattr(r, "idempotency_key", None) for r in self.runs)
        new = flow_run(Scheduled(), 0, parameters=parameters, tags=list(tags), idempotency_key=idempotency_key)
        self.runs.append(new)
        return new


def states(client):
    return [r.state.type.value for r in client.runs]


@pytest.mark.parametrize(("state", "end"), [(Running, "CRASHED"), (Cancelling, "CANCELLED")])
def test_a_run_is_given_up_at_the_second_silent_look(state, end):
    client = Client(flow_run(state()))
    assert upkeep.give_up(client, 180) == 0 and states(client) == [state().type.value]
    assert upkeep.give_up(client, 180) == 1 and states(client) == [end]
    assert "no sign of life" in client.runs[0].state.message


def test_a_sign_of_life_between_two_looks_saves_a_run():
    client = Client(flow_run(Running()))
    upkeep.give_up(client, 180)
    client.signs[str(client.runs[0].id)] = datetime.now(UTC)
    assert upkeep.give_up(client, 180) == 0 and upkeep.UNRESPONSIVE not in client.runs[0].tags
    client.signs.clear()
    assert upkeep.give_up(client, 180) == 0 and states(client) == ["RUNNING"], "counted from the start again"


def test_a_young_run_and_a_server_that_does_not_say_are_left_alone():
    client = Client(flow_run(Running(), 1))
    assert [upkeep.give_up(client, 180) for _ in range(3)] == [0, 0, 0]
    client = Client(flow_run(Running()))
    client.away = True
    assert [upkeep.give_up(client, 180) for _ in range(3)] == [0, 0, 0]


def test_a_crashed_run_is_started_again_so_often_and_no_more():
    client = Client(flow_run(Crashed()))
    for count in (1, 1, 0, 0):
        assert upkeep.restart(client, 2) == count
        client.runs[-1].state = Crashed()
    assert len(client.runs) == 3 and all(r.parameters == {"recipe": "r"} for r in client.runs)


@pytest.mark.parametrize("state", [Running, Completed, Scheduled, Crashed])
def test_what_was_started_in_its_place_is_enough(state):
    crashed, later = flow_run(Crashed(), 60), flow_run(state(), 5)
    client = Client(crashed, later)
    assert upkeep.restart(client, 2) == (1 if state is Crashed else 0), "of two crashed ones the later"
    if state is Crashed:
        assert f"{upkeep.RESTART_OF}{later.id}" in client.runs[-1].tags


def test_a_refused_run_another_recipe_and_tomorrow_s_schedule_take_nothing_over():
    tomorrow = flow_run(Scheduled(), 5, expected_start_time=NOW + timedelta(hours=10))
    others = [flow_run(Cancelled(), 5), flow_run(Completed(), 5, parameters={"recipe": "s"}), tomorrow]
    assert upkeep.restart(Client(flow_run(Crashed()), *others), 2) == 1


def test_old_crashes_and_zero_restarts_start_nothing():
    assert upkeep.restart(Client(flow_run(Crashed(), end_time=NOW - timedelta(days=2))), 2) == 0
    assert upkeep.restart(Client(flow_run(Crashed())), 0) == 0


@pytest.fixture
def told(monkeypatch):
    """What people are told by upkeep, of recipes that name somebody."""
    from tasks import notices

    messages = []
    monkeypatch.setattr(notices, "tell", lambda settings, message: messages.append((message.event, message.text())))
    return messages


def nightly(state, hours_ago, **fields):
    parameters = {"recipe": "recipes/quickstart.yaml", "overrides": ["notify={webhook_env: NOBODY}"]}
    begun = NOW - timedelta(hours=hours_ago)
    return flow_run(
        state,
        60 * hours_ago,
        expected_start_time=begun,
        name=f"night-{hours_ago}",
        **{"parameters": parameters, **fields},
    )


def skipped(hours_ago, **fields):
    return nightly(Cancelled(message=upkeep.SKIPPED), hours_ago, **fields)


def test_people_are_told_of_a_crash_once_and_again_of_the_run_that_replaced_it(told):
    client = Client(nightly(Crashed(message="no heartbeat for 300 s"), 2), nightly(Completed(), 26))
    assert [upkeep.tell(client), upkeep.tell(client)] == [1, 0]
    ((event, text),) = told
    assert event == "crashed" and "quickstart, flow run night-2" in text and "no heartbeat for 300 s" in text
    upkeep.restart(client, 2)
    client.runs[-1].state = Crashed()
    assert upkeep.tell(client) == 1, "the restart is another run, and does not inherit the mark"


@pytest.mark.parametrize("before", [Running(), Completed()])
def test_the_third_skipped_run_in_a_row_is_told_once_until_one_is_not_skipped(told, before):
    client = Client(nightly(before, 72), skipped(48), skipped(24))
    assert upkeep.tell(client) == 0, "two are not enough"
    client.runs.append(skipped(1))
    assert [upkeep.tell(client), upkeep.tell(client)] == [1, 0] and "3 runs in a row were skipped" in told[0][1]
    client.runs.append(skipped(0.5))
    assert upkeep.tell(client) == 0, "the same row"
    client.runs += [nightly(Completed(), 0.4), *(skipped(0.1 * n) for n in (3, 2, 1))]
    assert upkeep.tell(client) == 1


def test_a_run_that_a_person_cancelled_and_other_deployments_are_in_no_row(told):
    client = Client(skipped(3), nightly(Cancelled(message="by hand"), 2), skipped(1), skipped(0.5))
    client.runs += [skipped(h, deployment_id=uuid4()) for h in (0.3, 0.2)]
    assert upkeep.tell(client) == 0 and not told


@pytest.mark.parametrize(
    "parameters",
    [
        {"recipe": "recipes/quickstart.yaml"}, {"recipe": "gone.yaml"}, {},
        {"recipe": "recipes/quickstart.yaml", "overrides": ["notify={webhook_env: NOBODY, events: [worse]}"]},
    ],
)  # fmt: skip
def test_a_recipe_that_names_nobody_or_is_not_here_tells_nobody(told, parameters):
    client = Client(nightly(Crashed(), 1, parameters=parameters))
    assert upkeep.tell(client) == 0 and not told and upkeep.TOLD not in client.runs[0].tags


def test_an_upkeep_says_what_it_did_and_the_last_idle_one_is_enough():
    """Named after its work; what did nothing, or never began, is deleted by the next one, and nothing else is."""
    own, idle, worked = flow_run(Running(), name="upkeep"), flow_run(Completed()), flow_run(Completed())
    idle.name, worked.name = upkeep.IDLE, "upkeep: flow runs restarted 1"
    missed, stopped = flow_run(Cancelled(), start_time=None), flow_run(Cancelled(), name="upkeep")
    kept = {own.id: own, idle.id: idle, worked.id: worked, missed.id: missed, stopped.id: stopped}

    class Server:
        def update_flow_run(self, run, name):
            kept[run].name = name

        def read_flow_runs(self, flow_filter, flow_run_filter, limit):
            assert flow_filter.id.any_ == [own.flow_id]
            types = flow_run_filter.state.type.any_
            return [r for r in kept.values() if r.state.type in types]

        def delete_flow_run(self, run):
            del kept[run]

    context = SimpleNamespace(flow_run=own)
    assert upkeep.tidy(Server(), {"uploads sent": 0, "flow runs restarted": 0}, context) == 2
    assert own.name == upkeep.IDLE and [*kept] == [own.id, worked.id, stopped.id]
    assert upkeep.tidy(Server(), {"uploads sent": 2, "flow runs restarted": 0}, context) == 0
    assert own.name == "upkeep: uploads sent 2"
    assert upkeep.tidy(Server(), {}, None) == 0
