"""New problems out of the prompts that a model wrote: those that are unlike what there is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipelines.base.errors import DataError
from pipelines.curate.similar import words
from pipelines.data import chat, dataset, samples
from pipelines.data.records import Problem
from pipelines.recipe.selection import Selection
from pipelines.verifiers.overlap import rouge_l

ENDED = ("end", "length")
"""How a completion that was sampled may have ended; one that was cut is no whole prompt."""


def problems(folder: Path, select: Selection) -> Iterator[Problem]:
    """A record for each new prompt that passes the filters of Self-Instruct (2212.10560): length, keywords, ROUGE-L with all before it.

    The first ones it is compared with are those in whose place it was written. Comparing takes time in the square of the prompts. The
    record has the messages before the last one of its seed, no answer (the verifier `exact` calls everything incorrect: a judge is to
    say what answers are worth), and a uid of its text.

    Args:
        folder: the artifact of a sample stage with `new_prompts`.

    Raises:
        DataError: its completions are no prompts.
    """
    before = [words(dataset.from_row(rows[0]).info[samples.WRITTEN_FROM][-1]["content"]) for rows in _rows(folder)]
    keywords = {word for keyword in select.keywords for word in words(keyword)}
    for rows in _rows(folder):
        for row in rows:
            text = _prompt(row["text"], select) if row["stop"] == ENDED[0] else None
            own = words(text) if text else []
            if text and _fits(own, before, keywords, select):
                before.append(own)
                yield _problem(dataset.from_row(row), text)


def _rows(folder: Path) -> Iterator[list[dict]]:
    for rows in samples.by_problem(folder, [*dataset.SCHEMA, "text", "stop"]):
        if samples.WRITTEN_FROM not in dataset.from_row(rows[0]).info:
            raise DataError(
                f"{folder} holds answers and no prompts",
                fix="Give its stage `new_prompts`, or choose another selection.",
            )
        yield rows


def _prompt(text: str, select: Selection) -> str | None:
    if select.marks is not None:
        return chat.between(text, *select.marks)
    return chat.after_thinking(text).strip() or None


def _fits(own: list[str], before: list[list[str]], keywords: set[str], select: Selection) -> bool:
    fewest, most = select.words
    if not fewest <= len(own) <= most or keywords & set(own):
        return False
    return all(_bound(own, other) < select.rouge or rouge_l(other, own) < select.rouge for other in before)


def _bound(own: list[str], other: list[str]) -> float:
    """What ROUGE-L cannot exceed, by the lengths alone."""
    return 2 * min(len(own), len(other)) / (len(own) + len(other))


def _problem(request: Problem, text: str) -> Problem:
    *earlier, _ = request.info[samples.WRITTEN_FROM]
    asked = {"role": "user", "content": text}
    uid = hashlib.sha256(f"new prompt\0{text}".encode()).hexdigest()[:32]
    return replace(request, uid=uid, prompt=[*earlier, asked], answer="", verifier="exact", info={})
