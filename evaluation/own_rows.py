"""Rows of a benchmark from a file of the user's, in the benchmark's own columns; every fault has the file, the row and the column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluation.named_files import only
from pipelines.base.errors import DataError

MOST_ROW_BYTES = 1 << 30
"""Of a row: hidden tests of one problem of LiveCodeBench have over 100 MB."""


class RowFault(DataError):
    """A row that cannot be asked: the file and the row, then the column and what is wrong."""

    def __init__(self, place: str, column: str, fault: str) -> None:
        super().__init__(place, f"{column}: {fault}")


def dataset(documents: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Documents as the `datasets` test split that lm-eval asks for."""
    from datasets import Dataset

    return {"test": Dataset.from_list(list(documents))}


def rows(path: Path | str, columns: dict[str, type | tuple[type, ...]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(`file:number`, columns) of each row of a file of JSON lines, JSON or Parquet; a `.json` may hold JSON lines.

    Args:
        columns: those that a row must have → their types.

    Raises:
        DataError: there is no such file, or it is damaged.
        RowFault: a row is no object, or a column is missing or of another type.
    """
    from pipelines.curate.formats import Limits, json_lines, read_file

    file = only(str(path))
    if file is None:
        raise DataError(f"{path}: no file, or several, have this name", fix="Name one file.")
    limits = Limits(row_bytes=MOST_ROW_BYTES)
    read = json_lines if _holds_lines(file) else read_file
    try:
        for row in read(file, str(file), limits):
            if row.columns is None:
                raise RowFault(row.place, "row", " ".join(str(row.error).split())[:200])
            check(row.place, row.columns, columns)
            yield row.place, row.columns
    except RowFault:
        raise
    except DataError as error:  # the reader names the field of a source
        raise DataError(problems=[replace(problem, field="") for problem in error.problems]) from None


def check(place: str, row: dict[str, Any], columns: dict[str, type | tuple[type, ...]]) -> None:
    """A row has these columns, with these types.

    Raises:
        RowFault: it lacks one, or it is of another type.
    """
    for name, kinds in columns.items():
        if row.get(name) is None:
            raise RowFault(place, name, f"is missing (the row has {', '.join(sorted(row))[:200]})")
        if not isinstance(row[name], kinds):
            wanted = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
            raise RowFault(place, name, f"is {type(row[name]).__name__}, not {wanted}")


def parsed(place: str, column: str, text: str) -> Any:
    """The JSON in a column.

    Raises:
        RowFault: it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowFault(place, column, f"is no JSON ({str(error)[:100]})") from None


def _holds_lines(path: Path) -> bool:
    """Whether a `.json` has an object on its first line, and more lines."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    with open(path, "rb") as handle:
        first, rest = handle.readline(MOST_ROW_BYTES), handle.read(1)
    try:
        return isinstance(json.loads(first), dict) and (bool(rest) or first.endswith(b"\n"))
    except (ValueError, RecursionError):
        return False
