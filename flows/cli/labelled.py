"""Labelled rows that a command is given in a JSONL file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pipelines.base.errors import DataError
from pipelines.data.records import Message

Row = TypeVar("Row")


def read(path: Path, row_of: Callable[[int, dict[str, Any]], Row], form: str) -> list[Row]:
    """The rows of a file.

    Args:
        row_of: (number of the line, its object) → a row; what is none raises ValueError, KeyError, TypeError or AttributeError.
        form: what a row looks like, for errors.

    Raises:
        DataError: names the line and the fix.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(path, f"cannot be read ({error}).") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(row_of(number, json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}, line {number}", f"{error!s:.120}", f"Write a row as {form}.") from None
    if not rows:
        raise DataError(path, "no rows.")
    return rows


def conversation(prompt: Any) -> list[Message]:
    """A prompt's messages: it may be one text."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
