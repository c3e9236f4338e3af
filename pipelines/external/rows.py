"""The curated rows as Parquet in a trainer's columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipelines import verifiers
from pipelines.base.errors import DataError, did_you_mean
from pipelines.data import dataset
from pipelines.data.records import Problem
from pipelines.external.adapter import Adapter


def write(data: Path, split: str, path: Path, adapter: Adapter, columns: Mapping[str, str] | None) -> int:
    """Write a split; returns how many rows it has.

    Raises:
        DataError: there is no such split, it is empty, or a row's verifier is unknown or refuses it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    problems = dataset.read_split(data, split)
    for problem in problems:
        _check(problem)
    rows = [adapter.row(problem, index, columns) for index, problem in enumerate(problems)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return len(rows)


def _check(problem: Problem) -> None:
    if problem.verifier not in verifiers.known():
        raise DataError(
            f"row {problem.uid} names an unknown verifier {problem.verifier[:80]!r}",
            fix=did_you_mean(problem.verifier[:80], verifiers.known()),
        )
    if why := verifiers.refusal(problem.verifier, problem.answer, problem.info):
        raise DataError(f"row {problem.uid}: {why}")
