"""Answers of an evaluation as logs of inspect_ai, one a model and benchmark: version 2 of its JSON format, which its viewer opens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evaluation import samples
from pipelines.base.distribution import NAME, version
from pipelines.base.errors import UserError
from pipelines.base.files import json_lines, write_atomic
from pipelines.data import marks, thumbnails
from tasks.tracking import benchmarks

SCORER = "whetstone"
"""What the logs call whatever scored: the benchmark's own verifier or metric."""
ROLES = ("system", "user", "assistant")
"""Of messages; others speak as the user, since a tool's message needs the call that it answers, which no log has."""


def write(artifact: Path, folder: Path, *, created: float, about: Mapping[str, Any]) -> list[Path]:
    """Write `folder/TIME_BENCHMARK_MODEL.json` for each model and benchmark of an evaluation; its viewer lists names that begin so.

    Args:
        artifact: of an evaluate stage.
        created: when it was evaluated, in seconds since the epoch.
        about: metadata of every log, such as the run and the recipe.

    Raises:
        UserError: the artifact has no answers, or the folder cannot be written.
    """
    results, files = benchmarks.results(artifact)["evaluation"], list[Path]()
    when = datetime.fromtimestamp(created, UTC).isoformat(timespec="seconds")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(artifact.glob("samples/*/*.jsonl")):
            model, task = path.parent.name, path.stem
            cells = results.get(model, {}).get(task, {})
            log = _log([*_samples(path, model)], task, model, cells, when, about)
            files.append(folder / f"{when.replace(':', '-')}_{task}_{model}.json")
            write_atomic(files[-1], json.dumps(log, indent=1, ensure_ascii=False))
    except OSError as error:
        raise UserError(f"--to {folder}", f"cannot be written ({error.strerror or error}).") from None
    if not files:
        raise UserError(f"{artifact.name} holds no answers: its benchmarks log none.")
    return files


def _log(
    listed: list[dict[str, Any]],
    task: str,
    model: str,
    cells: Mapping[str, Any],
    when: str,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """The log of one model on one benchmark.

    Args:
        listed: its samples.
        cells: metric → value, low, high, n.
    """
    questions = list(dict.fromkeys(each["id"] for each in listed))
    metrics = {
        name: {
            "name": name,
            "value": cell["value"],
            "metadata": {k: cell[k] for k in ("low", "high", "n") if k in cell},
        }
        for name, cell in cells.items()
    }
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "created": when,
            "task": task,
            "model": f"{SCORER}/{model}",
            "dataset": {"name": task, "samples": len(questions), "sample_ids": questions, "shuffled": False},
            "config": {"epochs": max((each["epoch"] for each in listed), default=1)},
            "packages": {NAME: version()},
            "metadata": dict(about),
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": len(listed),
            "completed_samples": len(listed),
            "scores": [{"name": SCORER, "scorer": SCORER, "metrics": metrics}],
        },
        "stats": {"started_at": when, "completed_at": when},
        "samples": listed,
    }


def _samples(path: Path, model: str) -> Iterator[dict[str, Any]]:
    """The answers of a benchmark's log: one sample each, those of a question numbered by epoch."""
    pictures = thumbnails.read([path.parents[2]])
    for row in json_lines(path):
        asked = benchmarks.answer(row, path.stem)
        question = [_message(message, pictures) for message in asked.question]
        share = {samples.TRUNCATED: row[samples.TRUNCATED]} if samples.TRUNCATED in row else {}
        for epoch, text in enumerate(asked.texts, 1):
            answer = {"role": "assistant", "content": text, "source": "generate"}
            value = _value(asked, epoch)
            yield {
                "id": asked.uid,
                "epoch": epoch,
                "input": question,
                "target": asked.expected or "",
                "messages": [*question, answer],
                "output": {"model": model, "choices": [{"message": answer, "stop_reason": "unknown"}]},
                "scores": {} if value is None else {SCORER: {"value": value, "answer": text}},
                "metadata": share,
            }


def _value(asked: benchmarks.Answer, epoch: int) -> float | None:
    """The score of an answer: its own, or the one that all answers of its question have together."""
    if len(asked.scores) == len(asked.texts):
        return asked.scores[epoch - 1]
    return asked.scores[0] if len(asked.scores) == 1 else None


def _message(message: Mapping[str, Any], pictures: Mapping[str, thumbnails.Thumbnail]) -> dict[str, Any]:
    role, content = str(message.get("role")), str(message.get("content") or "")
    return {
        "role": role if role in ROLES else "user",
        "content": _parts(content, pictures) if marks.marked(content) else content,
    }


def _parts(text: str, pictures: Mapping[str, thumbnails.Thumbnail]) -> list[dict[str, str]]:
    """A question with images as inspect_ai's content parts; words stand for an image of which there is no thumbnail."""
    parts = []
    for piece, digest in marks.parts(text):
        parts += [{"type": "text", "text": piece}] if piece else []
        if digest is not None:
            thumbnail = pictures.get(digest)
            shown = {"type": "image", "image": thumbnail.address, "detail": "auto"} if thumbnail else None
            parts.append(shown or {"type": "text", "text": thumbnails.word(digest, None)})
    return parts
