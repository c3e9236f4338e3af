"""Functions that the benchmark YAMLs call: their data, their verifiers, and a filter that keeps every answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipelines import verifiers

NO_VERDICT = ("timed_out", "verifier_failed")
"""Statuses whose share among the answers is a metric of its own."""


def load(folder: Path) -> dict[str, Any]:
    """The benchmark's rows (`test.jsonl` beside its YAML) as a `datasets` test split.

    A row has question, answer, verifier and, as JSON text, info; `system` is optional.
    """
    from datasets import Dataset

    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines() if line.strip()]
    return {"test": Dataset.from_list(rows)}


def every_answer(responses: Iterable[list[str]], docs: Iterable[dict[str, Any]]) -> list[list[str]]:
    """An lm-eval filter that keeps all answers to a question, where the default keeps the first."""
    return [list(r) for r in responses]


def answers_of(results: list[Any]) -> list[str]:
    """All answers to a question, as `every_answer` leaves them."""
    return results[0] if isinstance(results[0], list) else results


def process_results(doc: dict[str, Any], results: list[list[str]]) -> dict[str, Any]:
    """Scores of one question's answers, by its verifier; an unscored answer counts as 0 here and is marked."""
    info = json.loads(doc["info"]) if doc.get("info") else {}
    verdicts = verifiers.verify_many([(doc["verifier"], a, doc["answer"], info) for a in answers_of(results)])
    return summary(verdicts)


def summary(verdicts: Sequence[verifiers.Verdict]) -> dict[str, Any]:
    """What lm-eval keeps of one question: the share of correct answers, the scores, and the shares without a verdict."""
    scores = [v.score or 0.0 for v in verdicts]
    return {
        "exact_match": sum(s >= 1 for s in scores) / len(scores),
        "scores": scores,
        **{status: sum(v.status == status for v in verdicts) / len(verdicts) for status in NO_VERDICT},
    }


def mean_of_lists(values: list[list[float]]) -> float:
    """Mean over questions of the mean score."""
    return sum(sum(v) / len(v) for v in values) / len(values)
