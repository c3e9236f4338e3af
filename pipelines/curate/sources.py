"""Raw rows from a source, streamed: reasoning-gym, files, hub datasets."""

from __future__ import annotations

import csv
import glob
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.errors import DataError, did_you_mean
from pipelines.recipe.settings import Source
from pipelines.verifiers.reasoning_gym import refusal

Row = tuple[str, dict[str, Any] | str]
"""Where the row stands (`file:line`), and its columns, or the text of a line that could not be read."""


def rows(source: Source) -> Iterator[Row]:
    """Rows of one source, in order, at most `source.size`.

    Raises:
        DataError: the source cannot be opened; names the source and the way out.
    """
    readers = {"reasoning_gym": _reasoning_gym, "environment": _environment, "file": _files, "hub": _hub}
    for number, row in enumerate(readers[source.kind](source)):
        if source.kind in ("file", "hub") and source.size is not None and number >= source.size:
            return
        yield row


def _reasoning_gym(source: Source) -> Iterator[Row]:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if source.task not in DATASETS:
        raise DataError(
            f"curate.sources: reasoning-gym has no task {source.task!r}. {did_you_mean(str(source.task), DATASETS)}"
        )
    if why := refusal(source.task):
        raise DataError(f"curate.sources: {why} Choose another task.")
    try:
        made = reasoning_gym.create_dataset(source.task, size=source.size, seed=source.seed, **source.config)
    except (TypeError, AssertionError, ValueError) as error:
        raise DataError(f"curate.sources: reasoning-gym task {source.task} refuses its config: {error}") from error
    for number in range(len(made)):
        entry = made[number]
        info = {"task": source.task, "metadata": json.dumps(entry["metadata"], default=str)}
        body = {"question": entry["question"], "answer": entry["answer"], "info": info, "verifier": "reasoning_gym"}
        yield f"{source.task}:{number}", body


def _environment(source: Source) -> Iterator[Row]:
    from pipelines import environments

    made = environments.problems(str(source.task), int(source.size or 0), source.seed, source.config)
    for number, row in enumerate(made):
        yield f"{source.task}:{number}", row


def _files(source: Source) -> Iterator[Row]:
    paths = sorted(glob.glob(str(Path(str(source.path)).expanduser()), recursive=True))
    if not paths:
        raise DataError(f"curate.sources.path: no file at {source.path}.")
    for path in paths:
        yield from read_file(Path(path))


def read_file(path: Path) -> Iterator[Row]:
    """Rows of one file by its ending: .jsonl, .json (a list, or an object that holds one), .parquet, .csv; .gz too.

    Raises:
        DataError: an ending that is not read, or a file that is not what its ending says.
    """
    suffix = path.suffixes[-2] if path.suffix == ".gz" and len(path.suffixes) > 1 else path.suffix
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        number = 0
        for batch in pq.ParquetFile(path).iter_batches(batch_size=2000):
            for row in batch.to_pylist():
                number += 1
                yield f"{path.name}:{number}", row
        return
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8", errors="replace") as handle:
        if suffix in (".jsonl", ".ndjson"):
            for number, line in enumerate(handle, 1):
                if line.strip():
                    yield f"{path.name}:{number}", _json_line(line)
        elif suffix == ".csv":
            for number, row in enumerate(csv.DictReader(handle), 2):
                yield f"{path.name}:{number}", dict(row)
        elif suffix == ".json":
            yield from _json_file(path, handle.read())
        else:
            raise DataError(f"curate.sources.path: {path} is not .jsonl, .json, .parquet or .csv (or .gz of them).")


def _json_line(line: str) -> dict[str, Any] | str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return line
    return row if isinstance(row, dict) else line


def _json_file(path: Path, text: str) -> Iterator[Row]:
    try:
        body = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"curate.sources.path: {path} is not JSON ({error}). One object a line? Call it .jsonl."
        ) from None
    if isinstance(body, dict):
        lists = [v for v in body.values() if isinstance(v, list)]
        if len(lists) != 1:
            raise DataError(f"curate.sources.path: {path} holds no list of rows.")
        body = lists[0]
    for number, row in enumerate(body, 1):
        yield f"{path.name}:{number}", row if isinstance(row, dict) else json.dumps(row)


def _hub(source: Source) -> Iterator[Row]:
    from datasets import load_dataset

    path = str(source.path)
    try:
        made = load_dataset(path, source.name, split=source.split, revision=source.revision, streaming=True)
        for number, row in enumerate(made):
            yield f"{path}:{source.split}:{number}", dict(row)
    except (OSError, ValueError, ConnectionError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise DataError(
            f"curate.sources.path: the dataset {path} could not be loaded ({first}). "
            "Check the name, the configuration, the split and the network; a local folder or `kind: file` works offline."
        ) from error
