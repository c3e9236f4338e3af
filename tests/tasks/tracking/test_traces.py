"""Answers as traces of a run: what MLflow's page reads of them, once each, whatever happens on the way."""

from __future__ import annotations

import json

import databases
import pytest
import vision_models

from pipelines.data import marks, thumbnails
from tasks.tracking.benchmarks import Shown
from tasks.tracking.time_budget import TrackerUnavailable


def shown(count):
    return [
        Shown(
            "palindromes", str(n), [{"role": "user", "content": f"palindrome {n}"}], ["abba", "ab"], "abba",
            {"correct": n % 2 == 0, "pass_share": 0.5}, "1 of 2 answers are correct", {"whetstone.step": "3"},
        )
        for n in range(count)
    ]  # fmt: skip


@pytest.fixture
def run(home):
    """A run in an empty store, with the client."""
    databases.store()
    from tasks.tracking import api as tracking

    client = tracking.client()
    return client, client.create_run(tracking.experiment("e")).info.run_id


def everything(client, run_id):
    experiment = client.get_run(run_id).info.experiment_id
    return sorted(client.search_traces(locations=[experiment], max_results=500), key=lambda t: t.info.request_time)


@pytest.mark.slow
def test_a_trace_has_question_answers_marks_and_its_run(run):
    from tasks.tracking import api as tracking

    client, run_id = run
    tracking.send_shown(run_id, shown(2), model_id="m-1", time_ms=1_700_000_000_000, sent=0, save=lambda count: None)
    trace, other = everything(client, run_id)
    assert (
        trace.info.trace_metadata["mlflow.sourceRun"] == run_id and trace.info.trace_metadata["mlflow.modelId"] == "m-1"
    )
    assert trace.info.request_preview == "palindrome 0" and trace.info.response_preview == "abba"
    assert trace.info.tags["whetstone.step"] == "3" and trace.info.tags["mlflow.traceName"] == "palindromes"
    marks = {a.name: (a.value, a.metadata["mlflow.assessment.sourceRunId"]) for a in trace.info.assessments}
    assert marks == {"correct": (True, run_id), "pass_share": (0.5, run_id), "answer": ("abba", run_id)}
    assert {a.name: a.value for a in other.info.assessments}["correct"] is False
    (span,) = trace.data.spans
    assert [c["message"]["content"] for c in span.outputs["choices"]] == ["abba", "ab"]
    assert json.loads(trace.info.trace_metadata["mlflow.traceInputs"]) == span.inputs


@pytest.mark.slow
def test_a_kill_between_two_batches_doubles_nothing(run):
    from tasks.tracking import api as tracking

    client, run_id = run
    arrived = []

    def killed(count):
        arrived.append(count)
        raise TrackerUnavailable("killed")

    with pytest.raises(TrackerUnavailable):
        tracking.send_shown(run_id, shown(30), model_id=None, time_ms=1_700_000_000_000, sent=0, save=killed)
    assert arrived == [25]
    for sent in (0, 25):  # the bookmark was lost, and it was not
        tracking.send_shown(run_id, shown(30), model_id=None, time_ms=1_700_000_000_000, sent=sent, save=arrived.append)
    traces = everything(client, run_id)
    assert len(traces) == 30 and arrived == [25, 25, 30, 30]
    assert {len(t.info.assessments) for t in traces} == {3} and {len(t.data.spans) for t in traces} == {1}


@pytest.mark.slow
def test_a_question_with_images_is_shown_as_parts(run, monkeypatch):
    """As OpenAI's API writes them, which MLflow's page shows; what is searched and listed has words."""
    from tasks.tracking import api as tracking
    from tasks.tracking import traces

    client, run_id = run
    digests = ["a1b2c3d4" * 4, "0" * 32]
    known = {digests[0]: thumbnails.of(vision_models.picture(64, 48, 1))}
    monkeypatch.setattr(traces, "MOST_PICTURES", int(1.5 * len(known[digests[0]].address)))
    text = f"{marks.mark(digests[0])}Is it {marks.mark(digests[1])} or {marks.mark(digests[0])}?"
    item = Shown("cells", "0", [{"role": "user", "content": text}], [f"no {text}"], pictures=known)
    tracking.send_shown(run_id, [item], model_id=None, time_ms=1_700_000_000_000, sent=0, save=lambda count: None)
    (trace,) = everything(client, run_id)
    words = "[image 64x48 a1b2c3d4]Is it [image 00000000] or [image 64x48 a1b2c3d4]?"
    (span,) = trace.data.spans
    (message,) = span.inputs["messages"]
    assert message["content"][0] == {"type": "image_url", "image_url": {"url": known[digests[0]].address}}
    assert [part["type"] for part in message["content"]] == ["image_url", "text", "text", "text"], "one has room"
    assert trace.info.request_preview == words
    assert json.loads(trace.info.trace_metadata["mlflow.traceInputs"])["messages"][0]["content"] == words
    assert span.outputs["choices"][0]["message"]["content"] == f"no {text}", "what the policy wrote stays as it is"
