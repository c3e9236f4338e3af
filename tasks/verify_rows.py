"""Rows of completions that somebody has, scored by verifiers outside a run: one verdict a row, or why it is no row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines import verifiers
from pipelines.base import plugins
from pipelines.base.errors import UserError, did_you_mean
from pipelines.verifiers import Verdict

BAD_ROW = "bad_row"
"""Status in the output of what is no row."""
INPUT = ("completion", "answer", "verifier", "info")


@dataclass(slots=True)
class Row:
    """What to score and what to copy, or why it is no row."""

    line: int
    verifier: str = ""
    completion: str = ""
    answer: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    bad: str = ""


def check_verifier(name: str | None, option: str) -> None:
    """The verifier of rows that name none; one that is named by where it is (`FILE.py`, `FILE.py:NAME`, `MODULE:NAME`) is loaded.

    Args:
        option: that names it.

    Raises:
        UserError: there is no verifier of this name, or no such file, module or function.
    """
    if name is not None and plugins.is_reference(name):
        try:
            plugins.activate([f"{verifiers.SLOT}={name}"])
        except UserError as error:
            raise error.moved("plugins", f"{option} {name}") from error
    if name is not None and name not in verifiers.known():
        raise UserError(f"{option} {name}", "unknown verifier", did_you_mean(str(name), verifiers.known()))


def row_of(value: Any, number: int, default: str | None) -> Row:
    """The row in a value as JSON has it; one that is none says why in `bad`.

    Args:
        number: its line.
        default: the verifier of rows that name none.
    """
    if not isinstance(value, Mapping):
        return Row(number, bad=f"not a JSON object but {type(value).__name__}")
    others = {str(key): item for key, item in value.items() if key not in INPUT}
    missing = [key for key in ("completion", "answer") if value.get(key) is None]
    if missing:
        return Row(number, bad=f"has no {' and no '.join(missing)}", others=others)
    row = Row(number, value.get("verifier") or default or "", value["completion"], others=others)
    row.info = {} if value.get("info") is None else value["info"]
    row.answer, row.bad = _answer(value["answer"]), _problem(row)
    return row


def _problem(row: Row) -> str:
    """What is wrong with the fields; empty where nothing is."""
    if not isinstance(row.completion, str):
        return f"completion is {type(row.completion).__name__}, not text"
    if not isinstance(row.verifier, str):
        return f"verifier is {type(row.verifier).__name__}, not text"
    if not row.verifier:
        return "names no verifier, and no other was given (--verifier NAME)"
    if row.verifier not in verifiers.known():
        return f"unknown verifier {row.verifier[:80]!r}. {did_you_mean(row.verifier[:80], verifiers.known())}"
    if not isinstance(row.info, dict):
        return f"info is {type(row.info).__name__}, not an object"
    return ""


def _answer(value: Any) -> str:
    """Text as it is, a number or truth value as Python writes it, a list or object as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def verdicts(rows: list[Row]) -> list[Verdict | None]:
    """One verdict per row; None where the row is bad, which `row.bad` then explains."""
    for row in rows:
        if not row.bad:
            row.bad = verifiers.refusal(row.verifier, row.answer, row.info)
    good = [row for row in rows if not row.bad]
    scored = verifiers.verify_many([(r.verifier, r.completion, r.answer, r.info) for r in good])
    by_line = {row.line: verdict for row, verdict in zip(good, scored, strict=True)}
    return [by_line.get(row.line) for row in rows]


def as_output(row: Row, verdict: Verdict | None) -> dict[str, Any]:
    """The entry of a verdict: the row's other keys, the line's number, score, status and components.

    A key of the row that an entry of the verdict would replace is kept as `input_KEY`.

    >>> row = Row(3, "number", "#### 7", "7", others={"id": "a", "score": 0.5})
    >>> as_output(row, Verdict(1.0, "correct"))
    {'id': 'a', 'input_score': 0.5, 'line': 3, 'verifier': 'number', 'score': 1.0, 'status': 'correct', 'components': {}}
    """
    if verdict is None:
        own: dict[str, Any] = {"line": row.line, "score": None, "status": BAD_ROW, "error": row.bad}
    else:
        own = {
            "line": row.line,
            "verifier": row.verifier,
            "score": verdict.score,
            "status": verdict.status,
            "components": verdict.components,
        }
    return {f"input_{key}" if key in own else key: value for key, value in row.others.items()} | own
