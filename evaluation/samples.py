"""The answers that an evaluation stored: per problem, its scores, and its texts where a person wants to read them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.base.files import digest, json_lines

TRUNCATED = "truncated_share"
"""Of a question's answers: those that were cut at the token limit. A metric of every task whose answers are drawn, too."""
SCORES = ("scores", "acc", "exact_match", "acc_norm", "prompt_level_strict_acc")
"""Where a task's log holds its scores: one a sample, or one in all."""


@dataclass(frozen=True)
class Sample:
    """One problem as one checkpoint answered it."""

    problem: str
    """Digest of what was asked: equal in any evaluation that asks it."""
    scores: list[float]
    """One a sample; correct from 1 on."""
    question: str
    target: str
    answers: list[str] = field(repr=False)
    prompt: str | None = None
    """Digest of the rendered prompt, with template and examples."""
    truncated: float | None = None
    """Share of its answers that were cut at the token limit; None where nothing was drawn."""


def read(path: Path) -> dict[str, Sample]:
    """The problems of `samples/<checkpoint>/<task>.jsonl`, by digest, in the order in which they were asked.

    A problem that a benchmark holds twice has two entries. Rows without a score are left out.
    """
    times: Counter[str] = Counter()
    problems: dict[str, Sample] = {}
    for row in json_lines(path):
        scores = scores_of(row)
        if scores is None:
            continue
        mark = digest(row.get("doc", row.get("doc_id")))[:20]
        times[mark] += 1
        key = mark if times[mark] == 1 else f"{mark}-{times[mark]}"
        problems[key] = Sample(
            key,
            scores,
            question_of(row),
            str(row.get("target", "")),
            answers_of(row),
            row.get("prompt_hash"),
            row.get(TRUNCATED),
        )
    return problems


def truncated_share(samples: Iterable[Sample]) -> float | None:
    """Mean share of answers that were cut at the token limit; None where a problem does not say."""
    shares = [sample.truncated for sample in samples]
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known and len(known) == len(shares) else None


def scores_of(row: dict[str, Any]) -> list[float] | None:
    """The scores of a logged problem, None where it has none.

    >>> scores_of({"acc": 1.0}), scores_of({"scores": [0, 1]}), scores_of({"ppl": 3})
    ([1.0], [0.0, 1.0], None)
    """
    for name in SCORES:
        value = row.get(name)
        if isinstance(value, bool | int | float):
            return [float(value)]
        if isinstance(value, list) and value and all(isinstance(v, bool | int | float) for v in value):
            return [float(v) for v in value]
    return None


def question_of(row: dict[str, Any]) -> str:
    """What was asked, in words."""
    return "\n".join(str(message["content"]) for message in messages_of(row))


def messages_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """What was asked, as messages; a question that was none is one message of the user.

    >>> messages_of({"doc": {"question": "1 + 1?"}})
    [{'role': 'user', 'content': '1 + 1?'}]
    """
    doc = row.get("doc")
    if not isinstance(doc, dict):
        return [{"role": "user", "content": str(doc if doc is not None else row.get("doc_id"))}]
    for name in ("question", "problem", "query", "prompt", "context"):
        value = doc.get(name)
        if isinstance(value, str):
            return [{"role": "user", "content": value}]
        if isinstance(value, list) and value and all(isinstance(m, dict) and "content" in m for m in value):
            return value
    return [{"role": "user", "content": json.dumps(doc, ensure_ascii=False, default=str)}]


def answers_of(row: dict[str, Any]) -> list[str]:
    """What the model wrote, a text a sample."""
    answers = row.get("resps") or []
    while len(answers) == 1 and isinstance(answers[0], list):
        answers = answers[0]
    return [str(a) for a in answers]
