"""What a flow run's page in Prefect is sent, with a stand-in for Prefect's functions: no server is needed for the timing."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from flows import page


@pytest.mark.parametrize(
    ("parameters", "stage", "name"),
    [
        ({"recipe": "recipes/quickstart.yaml"}, None, "quickstart"),
        (
            {"recipe": "a/b.yaml", "overrides": ["seed=3", "rlvr.advantage.kind=rloo"]},
            None,
            "b · seed 3 · rlvr.advantage rloo",
        ),
        ({"recipe": "b.yaml", "overrides": None, "fresh": True}, "sft", "sft · b · fresh"),
        ({"recipe": "b.yaml", "from_stage": "sft", "until": "rlvr"}, None, "b · from sft · until rlvr"),
        ({"recipe": "b.yaml", "only": ["sft", "rlvr"]}, None, "b · only sft rlvr"),
        ({"recipe": "b.yaml", "overrides": ["curate.filter=a=b"]}, None, "b · curate.filter a=b"),
    ],
)
def test_a_run_s_name_says_what_it_changes(parameters, stage, name):
    assert page.name_of(parameters, stage) == name


@pytest.fixture
def sent(monkeypatch):
    """Progress as Prefect would get it; `sent.away` makes it unreachable."""

    class Sent(list):
        away = threading.Event()

    sent = Sent()

    def create(percent, key, description):
        if sent.away.is_set():
            raise httpx.ConnectError("away")
        sent.append((key, percent))
        return key

    def update(bar, percent, description):
        if sent.away.is_set():
            raise httpx.ConnectError("away")
        sent.append((bar, percent))

    monkeypatch.setattr(page, "create_progress_artifact", create)
    monkeypatch.setattr(page, "update_progress_artifact", update)
    monkeypatch.setattr(page, "EVERY_S", 0.02)
    return sent


def wait_for(true):
    until = time.monotonic() + 5
    while not true() and time.monotonic() < until:
        time.sleep(0.01)
    assert true()


def test_each_stage_has_a_bar_that_ends_where_the_stage_did(sent):
    beside = []
    bars = page.Bars(lambda *given: beside.append(given))
    for done in (1, 2, 4):
        bars("sft", {"done": done, "total": 4, "what": "loss 3"})
    bars("sft", None)
    bars("rlvr", {})
    bars("rlvr", {"done": 1, "total": 2})
    wait_for(lambda: ("progress-rlvr", 50.0) in sent)
    bars("rlvr", None)
    wait_for(lambda: ("progress-sft", 100.0) in sent)
    assert [p for key, p in sent if key == "progress-sft"][-1] == 100.0
    assert len(beside) == 7 and beside[-1] == ("rlvr", None)


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_a_bar_says_that_its_stage_has_no_result(sent, monkeypatch, how):
    said = []
    monkeypatch.setattr(page, "EVERY_S", 60)
    monkeypatch.setattr(page, "create_progress_artifact", lambda percent, key, description: said.append(description))
    bars = page.Bars(lambda *_: None)
    bars("sft", {"done": 4, "total": 4, "what": "loss 3"})
    bars("sft", {"done": 4, "total": 4, "what": "loss 3", "ending": how})
    bars("sft", None)
    bars("rlvr", {"ending": how})
    bars("rlvr", None)
    wait_for(lambda: len(said) == 2)
    assert said == [how, how]


def test_a_server_that_is_away_stops_nobody(sent):
    sent.away.set()
    bars = page.Bars(lambda *_: None)
    began = time.monotonic()
    bars("sft", {"done": 1, "total": 4})
    assert time.monotonic() - began < 0.5
    time.sleep(0.1)
    sent.away.clear()
    wait_for(lambda: ("progress-sft", 25.0) in sent)
    bars("sft", None)


BODY = {
    "recipe": "toy", "seed": 0, "experiment_id": "1", "evaluation": {},
    "stages": {
        "curate": {"status": "reused", "why": "nothing it reads has changed", "seconds": 0.0, "run_id": "c" * 32},
        "sft": {"status": "ran", "why": "sft.steps changed 1 | 2", "seconds": 12.3, "run_id": "5" * 32},
    },
}  # fmt: skip


def test_the_story_of_a_run_says_what_was_done_and_why():
    text = page.story(BODY, "http://h/#/experiments/1/runs/p")
    assert text.startswith("**toy: ran sft; reused curate**\n\n[This run in MLflow](http://h/#/experiments/1/runs/p)")
    assert "| curate | reused | nothing it reads has changed | – |  |" in text
    assert "| sft | ran | sft.steps changed 1 / 2 | 12 s | [MLflow](" in text and "5" * 32 in text
    assert "MLflow" not in page.story(BODY, None), "the embedded store has no pages"


def test_the_story_of_a_failure_begins_with_it():
    failed = {"stage": "rlvr", "error": "the stage ended with exit code 3.", "log": ["the last line"]}
    text = page.story(BODY | {"failed": failed}, None)
    assert text.startswith("**toy: ran sft; reused curate; rlvr failed**\n\nthe stage ended with exit code 3.")
    assert "the last line" in text


def test_the_log_says_scores_gains_and_the_gate(monkeypatch):
    cells = {
        "sums": {
            "pass@1": {"value": 0.25, "low": 0.2, "high": 0.3, "n": 40},
            "mean_length": {"value": 7.0, "low": 6.0, "high": 8.0},
        }
    }
    gate = {"verdict": "no champion", "against": None, "why": ["toy has no champion yet"]}
    lines = []
    monkeypatch.setattr(page, "say", lines.append)
    monkeypatch.setattr(page.FlowRunContext, "get", lambda: object())
    monkeypatch.setattr(page, "create_markdown_artifact", lambda *arguments, **named: None)
    page.told(BODY | {"evaluation": {"base": cells, "rlvr": cells}, "gate": gate}, "http://h/x")
    assert lines == [
        "sums pass@1: base 25.0 % [20.0, 30.0], RLVR 25.0 % [20.0, 30.0]", "gate: no champion yet", "toy has no champion yet",
        "in MLflow: http://h/x",
    ]  # fmt: skip


def test_what_is_refused_before_the_first_stage_is_on_the_page(monkeypatch):
    told = []
    monkeypatch.setattr(page.FlowRunContext, "get", lambda: object())
    monkeypatch.setattr(page, "create_markdown_artifact", lambda text, **about: told.append((text, about)))
    with pytest.raises(ValueError, match=r"nowhere\.jsonl"), page.refused("recipes/nightly.yaml"):
        raise ValueError("curate.sources.0: no file nowhere.jsonl")
    ((text, about),) = told
    assert text.startswith("**nightly: the run failed**\n\ncurate.sources.0: no file nowhere.jsonl")
    assert about == {"key": "run", "description": "nightly: the run failed"}


def test_outside_a_flow_nothing_is_sent():
    page.planned([None])
    page.ended(None)
    page.told({}, None)
