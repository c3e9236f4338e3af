"""Answers and rollouts as traces, so that MLflow's own page shows them question by question and puts two checkpoints side by side.

Written through MLflow's store, in bulk: its public calls take three times as long for each. That is private API, kept in this
file and pinned by tests against a real store. Ids are made of what is sent, so that sending again doubles nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from mlflow.entities import AssessmentSource, Expectation, Feedback, Span, TraceInfo, TraceLocation
from mlflow.entities.trace_state import TraceState

from tasks.tracking.benchmarks import Shown
from tasks.tracking.client import client, mlflow_errors

BATCH = 25
PREVIEW = 1000
"""Characters of a question or an answer in a list."""
SOURCE = AssessmentSource(source_type="CODE", source_id="whetstone")


@mlflow_errors()
def send_shown(
    run_id: str, shown: list[Shown], *, model_id: str | None, time_ms: int, sent: int, save: Callable[[int], None]
) -> None:
    """Send what is to be looked at as traces of a run.

    Args:
        model_id: LoggedModel that answered.
        sent: how many of them have arrived before; `save` is told after every batch.
    """
    to = client()
    store = to._tracking_client.store
    experiment_id = to.get_run(run_id).info.experiment_id
    for start in range(sent, len(shown), BATCH):
        part = shown[start : start + BATCH]
        spans = []
        for place, item in enumerate(part, start):
            trace = _trace(item, run_id, experiment_id, model_id, time_ms + place)
            store.start_trace(trace)
            spans.append(_span(item, trace))
        store.log_spans(experiment_id, spans)
        save(start + len(part))


def _id(*parts: str) -> str:
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]


def _request(item: Shown) -> str:
    return json.dumps({"messages": item.question})


def _response(item: Shown) -> str:
    choices = [{"index": i, "message": {"role": "assistant", "content": text}} for i, text in enumerate(item.texts)]
    return json.dumps({"choices": choices})


def _trace(item: Shown, run_id: str, experiment_id: str, model_id: str | None, time_ms: int) -> TraceInfo:
    trace_id = f"tr-{_id(run_id, item.name, item.uid)}"
    about = {"mlflow.assessment.sourceRunId": run_id}
    assessments: list[Any] = [
        Feedback(name=name, value=value, source=SOURCE, metadata=about, rationale=item.why, create_time_ms=time_ms,
                 last_update_time_ms=time_ms)
        for name, value in item.marks.items()
    ]  # fmt: skip
    if item.expected is not None:
        assessments.append(
            Expectation(name="answer", value=item.expected, source=SOURCE, metadata=about, create_time_ms=time_ms,
                        last_update_time_ms=time_ms)
        )  # fmt: skip
    for assessment in assessments:
        assessment.trace_id = trace_id
        assessment.assessment_id = f"a-{_id(trace_id, assessment.name)}"
    metadata = {
        "mlflow.sourceRun": run_id, "mlflow.traceInputs": _request(item), "mlflow.traceOutputs": _response(item),
        "mlflow.trace_schema.version": "3",
    }  # fmt: skip
    return TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=time_ms,
        state=TraceState.OK,
        request_preview=item.question[-1]["content"][:PREVIEW] if item.question else "",
        response_preview=(item.texts[0] if item.texts else "")[:PREVIEW],
        execution_duration=0,
        trace_metadata=metadata | ({"mlflow.modelId": model_id} if model_id else {}),
        tags={"mlflow.traceName": item.name, "mlflow.trace.spansLocation": "TRACKING_STORE", **item.tags},
        assessments=assessments,
    )


def _span(item: Shown, trace: TraceInfo) -> Span:
    start = trace.request_time * 1_000_000
    return Span.from_dict({
        "trace_id": trace.trace_id, "span_id": _id(trace.trace_id, "span")[:16], "parent_span_id": None, "name": item.name,
        "start_time_unix_nano": start, "end_time_unix_nano": start, "events": [],
        "status": {"code": "STATUS_CODE_OK", "message": ""},
        "attributes": {
            "mlflow.traceRequestId": json.dumps(trace.trace_id), "mlflow.spanType": json.dumps("CHAT_MODEL"),
            "mlflow.spanInputs": _request(item), "mlflow.spanOutputs": _response(item),
        },
    })  # fmt: skip
