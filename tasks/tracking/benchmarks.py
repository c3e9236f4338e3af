"""What an evaluation's artifact holds for MLflow: scores by checkpoint, digests of the questions, answers by question."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation import samples
from pipelines.base.files import digest, json_lines, read_object

if TYPE_CHECKING:
    from pipelines.data.thumbnails import Thumbnail


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
    pictures: Mapping[str, Thumbnail] = field(default_factory=dict)
    """Digest → thumbnail, of the images that its question may show."""


def results(artifact: Path) -> dict[str, Any]:
    """`evaluation` and `differences` of an evaluation's artifact; empty where it cannot be read."""
    body = read_object(artifact / "results.json", evaluation=dict, differences=dict) or {}
    return {"evaluation": body.get("evaluation") or {}, "differences": body.get("differences") or {}}


def renamed(results: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Results with the names of a recipe's stages for the labels of checkpoints.

    Args:
        results: `evaluation` and `differences` (task → "before → after" → cell).
        names: label → name; labels that are not there stay.

    >>> renamed({"evaluation": {"rlvr-2": {}}, "differences": {"t": {"sft → rlvr-2": {}}}}, {"sft": "cold", "rlvr-2": "long"})
    {'evaluation': {'long': {}}, 'differences': {'t': {'cold → long': {}}}}
    """

    def step(text: str) -> str:
        return " → ".join(names.get(label, label) for label in text.split(" → "))

    evaluation = {names.get(label, label): by_task for label, by_task in results["evaluation"].items()}
    differences = {t: {step(k): cell for k, cell in steps.items()} for t, steps in results["differences"].items()}
    return {"evaluation": evaluation, "differences": differences}


def values(by_task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """task → metric → value, of one checkpoint's results."""
    return {task: {metric: cell["value"] for metric, cell in cells.items()} for task, cells in by_task.items()}


def datasets(artifact: Path) -> list[dict[str, Any]]:
    """The benchmarks that were asked: name, digest of the questions in their order, how many."""
    by_task = {}
    for path in sorted(artifact.glob("samples/*/*.jsonl")):
        if path.stem not in by_task:
            docs = [row.get("doc") for row in json_lines(path)]
            by_task[path.stem] = {
                "name": path.stem, "digest": digest(docs)[:32], "source": path.stem, "context": "evaluation",
                "profile": json.dumps({"questions": len(docs)}),
            }  # fmt: skip
    return list(by_task.values())


def answers(artifact: Path, checkpoint: str, limit: int | None = None) -> list[Answer]:
    """The answers of a checkpoint, at most `limit` questions of each task, the first ones: the same for every checkpoint."""
    listed: list[Answer] = []
    for path in sorted((artifact / "samples" / checkpoint).glob("*.jsonl")):
        listed += [answer(row, path.stem) for row in islice(json_lines(path), limit)]
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


def answer(row: dict[str, Any], task: str) -> Answer:
    """A question of a benchmark's log, with its answers."""
    doc = row.get("doc")
    expected = row["target"] if "target" in row else doc.get("answer") if isinstance(doc, dict) else None
    return Answer(
        task=task,
        question=samples.messages_of(row),
        uid=str(row.get("doc_id")),
        expected=None if expected is None else str(expected),
        texts=samples.answers_of(row),
        scores=samples.scores_of(row) or [],
    )
