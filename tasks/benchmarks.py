"""What an evaluation's artifact holds for MLflow: scores by checkpoint, digests of the questions, answers by question."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pipelines.stage.files import digest, read_object


@dataclass(frozen=True)
class Answer:
    """The answers of one checkpoint to one question."""

    task: str
    question: list[dict[str, str]]
    """Messages."""
    uid: str
    expected: str | None
    texts: list[str]
    scores: list[float]
    """One a text; empty where the task reports none."""


@dataclass(frozen=True)
class Shown:
    """Something to look at in MLflow: a question, texts that answer it, and what was thought of them."""

    name: str
    uid: str
    """Unique under its name and run."""
    question: list[dict[str, str]]
    texts: list[str]
    expected: str | None = None
    marks: dict[str, float | bool | str] = field(default_factory=dict)
    why: str | None = None
    tags: dict[str, str] = field(default_factory=dict)


def results(artifact: Path) -> dict[str, Any]:
    """`evaluation` and `differences` of an evaluation's artifact; empty where it cannot be read."""
    body = read_object(artifact / "results.json", evaluation=dict, differences=dict) or {}
    return {"evaluation": body.get("evaluation") or {}, "differences": body.get("differences") or {}}


def values(by_task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """task → metric → value, of one checkpoint's results."""
    return {task: {metric: cell["value"] for metric, cell in cells.items()} for task, cells in by_task.items()}


def datasets(artifact: Path) -> list[dict[str, Any]]:
    """The benchmarks that were asked: name, digest of the questions in their order, how many."""
    by_task = {}
    for path in sorted(artifact.glob("samples/*/*.jsonl")):
        if path.stem not in by_task:
            docs = [row.get("doc") for row in _rows(path)]
            by_task[path.stem] = {
                "name": path.stem, "digest": digest(docs)[:32], "source": path.stem, "context": "evaluation",
                "profile": json.dumps({"questions": len(docs)}),
            }  # fmt: skip
    return list(by_task.values())


def answers(artifact: Path, checkpoint: str, limit: int | None = None) -> list[Answer]:
    """The answers of a checkpoint, at most `limit` questions of each task, the first ones: the same for every checkpoint."""
    listed: list[Answer] = []
    for path in sorted((artifact / "samples" / checkpoint).glob("*.jsonl")):
        listed += [_answer(path.stem, row) for row in islice(_rows(path), limit)]
    return listed


def shown(answer: Answer) -> Shown:
    """An answer as MLflow is to show it: `correct` where at least half of the texts are, and the share that is."""
    marks: dict[str, float | bool | str] = {}
    why = None
    if answer.scores:
        correct = sum(score >= 1 for score in answer.scores)
        share = correct / len(answer.scores)
        marks = {"correct": share >= 0.5, "pass_share": round(share, 4)}
        why = f"{correct} of {len(answer.scores)} answers are correct"
    return Shown(answer.task, answer.uid, answer.question, answer.texts, answer.expected, marks, why)


def _answer(task: str, row: dict[str, Any]) -> Answer:
    doc: dict[str, Any] = row["doc"] if isinstance(row.get("doc"), dict) else {}
    texts = row.get("filtered_resps") or row.get("resps") or []
    if texts and isinstance(texts[0], list):
        texts = texts[0]
    question = doc.get("prompt") if isinstance(doc.get("prompt"), list) else None
    if question is None:
        question = [
            {"role": "user", "content": str(doc.get("question", doc.get("problem", json.dumps(doc, default=str))))}
        ]
    expected = row.get("target", doc.get("answer"))
    scores = row.get("scores")
    if scores is None:
        single = row.get("exact_match", row.get("acc"))
        scores = [float(single)] if isinstance(single, int | float) else []
    return Answer(
        task=task,
        question=question,
        uid=str(row.get("doc_id")),
        expected=None if expected is None else str(expected),
        texts=[t if isinstance(t, str) else json.dumps(t, default=str) for t in texts],
        scores=[float(s) for s in scores],
    )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as handle:
        for line in handle:
            row = json.loads(line)
            if isinstance(row, dict):
                yield row
