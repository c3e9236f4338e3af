"""Answers and rollouts as traces, so that MLflow's own page shows them question by question and puts two checkpoints side by side.

Written through MLflow's store, in bulk: its public calls take three times as long for each. That is private API, kept in this
file and pinned by tests against a real store. Ids are made of what is sent, so that sending again doubles nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from mlflow.entities import AssessmentSource, Expectation, Feedback, Span, TraceInfo, TraceLocation
from mlflow.entities.trace_state import TraceState

from pipelines.data import marks, thumbnails
from tasks.tracking.benchmarks import Shown
from tasks.tracking.client import client, mlflow_errors

BATCH = 25
PREVIEW = 1000
"""Characters of a question or an answer in a list."""
MOST_PICTURES = 300_000
"""Characters of the pictures of a trace; MLflow's page shows what is longer than a million as plain text."""
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


def _request(item: Shown, *, pictures: bool = False) -> str:
    """The question; MLflow's page shows parts of the type `image_url` as pictures, whose address may be one of `data:`."""
    room = MOST_PICTURES if pictures else 0
    messages = []
    for message in item.question:
        content: Any = message["content"]
        if isinstance(content, str) and marks.marked(content):
            content = _parts(content, item.pictures, room)
            room -= sum(len(part["image_url"]["url"]) for part in content if part["type"] == "image_url")
            content = content if pictures else "".join(part["text"] for part in content)
        messages.append({**message, "content": content})
    return json.dumps({"messages": messages})


def _parts(text: str, known: Mapping[str, thumbnails.Thumbnail], room: int) -> list[dict[str, Any]]:
    """A message as OpenAI's content parts; words stand for images of which there is no thumbnail, and for those that find no room."""
    parts: list[dict[str, Any]] = []
    for piece, digest in marks.parts(text):
        thumbnail = known.get(digest or "")
        told = "" if digest is None else thumbnails.word(digest, thumbnail)
        if thumbnail is not None and thumbnail.address and len(thumbnail.address) <= room:
            room -= len(thumbnail.address)
            parts += [{"type": "text", "text": piece}] if piece else []
            parts.append({"type": "image_url", "image_url": {"url": thumbnail.address}})
        elif piece or told:
            parts.append({"type": "text", "text": piece + told})
    return parts


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
        request_preview=thumbnails.words(item.question[-1]["content"], item.pictures)[:PREVIEW]
        if item.question
        else "",
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
            "mlflow.spanInputs": _request(item, pictures=True), "mlflow.spanOutputs": _response(item),
        },
    })  # fmt: skip
