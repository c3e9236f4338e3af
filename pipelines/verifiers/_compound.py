"""Verifiers that ask other verifiers: their parts are verified in one batch, and combined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.base.errors import UserError
from pipelines.verifiers import verify_many as verify_rows
from pipelines.verifiers.registry import COMPOUND, load
from pipelines.verifiers.verdict import UNPARSABLE, Verdict, failed

Row = tuple[str, str, str, dict[str, Any]]
MOST_CHARS = 100_000
"""A longer completion is unparsable for them."""


class BadPart(ValueError):
    """A row whose parts cannot be read."""


def part(spec: Any, completion: str) -> Row:
    """The row of another verifier: `{verifier, answer, info}`.

    Raises:
        BadPart: it is none, or names a verifier that has parts itself.
    """
    if not isinstance(spec, dict) or not isinstance(spec.get("verifier"), str) or spec["verifier"] in COMPOUND:
        raise BadPart("a part is {verifier, answer, info} of a verifier without parts")
    info = spec.get("info") or {}
    if not isinstance(info, dict) or not isinstance(spec.get("answer", ""), str):
        raise BadPart("a part's answer is text, and its info an object")
    load(spec["verifier"])
    return (spec["verifier"], completion, spec.get("answer", ""), info)


def verify_many(rows: Sequence[Row]) -> list[Verdict]:
    """Verdicts of rows of `COMPOUND`, in order.

    A row whose info is bad, or a part of which is unscored, is `verifier_failed`.

    Raises:
        DataError: a part names no verifier, or what a verifier needs cannot be loaded.
    """
    verdicts: dict[int, Verdict] = {}
    parts: dict[int, list[Row]] = {}
    for index, (name, completion, answer, info) in enumerate(rows):
        if len(completion) > MOST_CHARS:
            verdicts[index] = UNPARSABLE
            continue
        try:
            parts[index] = load(name).parts(completion, answer, info)
        except UserError:
            raise
        except Exception as error:
            verdicts[index] = failed(type(error).__name__)
    answered = iter(verify_rows([row for listed in parts.values() for row in listed]))
    by_row = {index: [next(answered) for _ in listed] for index, listed in parts.items()}
    for name in COMPOUND:
        asked = [index for index in parts if rows[index][0] == name]
        own = [index for index in asked if all(v.score is not None for v in by_row[index])]
        verdicts |= {index: failed("Part") for index in set(asked) - set(own)}
        verdicts |= dict(zip(own, _combined(name, [rows[i][1:] for i in own], [by_row[i] for i in own]), strict=True))
    return [verdicts[index] for index in range(len(rows))]


def _combined(name: str, rows: list[Any], parts: list[list[Verdict]]) -> list[Verdict]:
    """Verdicts of all rows at once; one by one where a row raises, which is then `verifier_failed`."""
    try:
        return list(load(name).combine(rows, parts))
    except UserError:
        raise
    except Exception as error:
        if len(rows) == 1:
            return [failed(type(error).__name__)]
        return [_combined(name, [row], [part])[0] for row, part in zip(rows, parts, strict=True)]
