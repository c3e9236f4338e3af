"""A place on the GPU, with a stand-in for Prefect's limit: what its absence and its failures do to a stage."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest

from tasks import gpu
from tasks.worker import WorkerError


@pytest.fixture
def limit(monkeypatch):
    """The limit as Prefect's: `held` is how many hold it; `answers` are raised, one at each question, before it is given."""
    state = SimpleNamespace(held=0, asked=[], answers=[], at_release=None)

    @contextlib.contextmanager
    def concurrency(name, **options):
        state.asked.append((name, options))
        if state.answers:
            raise state.answers.pop(0)
        state.held += 1
        yield
        state.held -= 1
        if state.at_release:
            raise state.at_release

    monkeypatch.setattr(gpu, "concurrency", concurrency)
    monkeypatch.setattr(gpu, "deployment", SimpleNamespace(id=str(uuid4())))
    monkeypatch.setattr(gpu, "RETRY_S", 0.0)
    monkeypatch.setattr(gpu, "flow_run", SimpleNamespace(id=None))
    return state


@pytest.mark.parametrize("stage", ["sft", "rlvr", "evaluate"])
def test_a_gpu_stage_holds_a_place_while_it_computes(limit, stage):
    with gpu.slot(stage):
        assert limit.held == 1
    assert limit.held == 0
    ((name, options),) = limit.asked
    assert name == "gpu" and options["strict"] and options["raise_on_lease_renewal_failure"] is False


def test_curation_and_local_runs_hold_none(limit, monkeypatch):
    with gpu.slot("curate"):
        assert not limit.asked
    monkeypatch.setattr(gpu, "deployment", SimpleNamespace(id=None))
    with gpu.slot("rlvr"):
        assert not limit.asked


def test_a_stage_that_fails_gives_its_place_back(limit):
    with pytest.raises(ZeroDivisionError), gpu.slot("sft"):
        raise ZeroDivisionError
    assert limit.held == 0


def test_without_the_limit_a_person_is_told_what_makes_it(limit):
    limit.answers = [gpu.ConcurrencySlotAcquisitionError("not found")]
    with pytest.raises(WorkerError, match="whetstone deploy"), gpu.slot("sft"):
        raise AssertionError("it did not wait")


def test_a_server_that_is_away_is_asked_again(limit):
    limit.answers = [httpx.ConnectError("away"), httpx.ReadTimeout("away")]
    with gpu.slot("sft"):
        assert limit.held == 1 and len(limit.asked) == 3


def test_a_server_that_stays_away_fails_the_stage_before_it_starts(limit, monkeypatch):
    monkeypatch.setattr(gpu, "AWAY_S", -1.0)
    limit.answers = [httpx.ConnectError("away")]
    with pytest.raises(httpx.ConnectError), gpu.slot("sft"):
        raise AssertionError("it did not wait")


def test_a_place_that_cannot_be_given_back_costs_no_result(limit, caplog):
    limit.at_release = httpx.ConnectError("away")
    with gpu.slot("rlvr"):
        pass
    assert "lease" in caplog.text


def taken():
    """What Prefect's client raises while somebody else has the place."""
    error = gpu.ConcurrencySlotAcquisitionError("423")
    error.__cause__ = httpx.HTTPStatusError("423", request=None, response=httpx.Response(423))
    return error


def wrapped(cause):
    error = gpu.ConcurrencySlotAcquisitionError("unable")
    error.__cause__ = cause
    return error


def test_a_stage_that_waits_says_for_whom_and_again_when_that_changes(limit, monkeypatch, caplog):
    who = iter(["a", "a", "b"])
    monkeypatch.setattr(gpu, "holders", lambda: next(who))
    limit.answers = [taken(), taken(), wrapped(httpx.ConnectError("away")), taken()]
    with gpu.slot("sft"):
        assert limit.held == 1
    said = [r.getMessage() for r in caplog.records if "held by" in r.getMessage()]
    assert said == [f"sft: waits for a place on the GPU, held by {name}" for name in "ab"]
    assert "has a place on the GPU after" in caplog.text and "does not answer" in caplog.text
    assert all(options["max_retries"] == 0 for _, options in limit.asked), "or nobody would be told"


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (["a", "", "b"], ["a", "b"]),
        (["", "a"], ["another run", "a"]),
        (["a", "", ""], ["a", "a run that ended without giving it back; it is free again after 300 s at most"]),
    ],
)
def test_a_place_that_changes_hands_is_nobody_s_for_one_look(limit, monkeypatch, caplog, seen, said):
    """Who takes it has its tag a moment later; only what has none at two looks in a row has ended."""
    who = iter(seen)
    monkeypatch.setattr(gpu, "holders", lambda: next(who))
    limit.answers = [taken() for _ in seen]
    with gpu.slot("sft"):
        assert limit.held == 1
    told = [r.getMessage() for r in caplog.records if "held by" in r.getMessage()]
    assert told == [f"sft: waits for a place on the GPU, held by {name}" for name in said]


def test_a_flow_run_is_tagged_while_any_of_its_stages_has_the_place(monkeypatch):
    run = SimpleNamespace(id=uuid4(), tags=["whetstone"])
    told = []

    class Client(contextlib.AbstractContextManager):
        def __exit__(self, *_):
            return None

        def read_flow_run(self, _):
            return run

        def update_flow_run(self, _, tags):
            run.tags = sorted(tags)
            told.append(run.tags)

    monkeypatch.setattr(gpu, "get_client", lambda **_: Client())
    monkeypatch.setattr(gpu, "flow_run", SimpleNamespace(id=str(run.id)))
    with gpu._tagged(gpu.HOLDS), gpu._tagged(gpu.HOLDS):
        assert run.tags == ["whetstone", gpu.HOLDS]
    assert told == [["whetstone", gpu.HOLDS], ["whetstone"]]
