"""The curated data folder: Parquet per split, the tokenizer of fresh models, and `data.json` about both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.base.errors import DataError, did_you_mean
from pipelines.base.files import read_json, write_atomic
from pipelines.data.records import Problem

SCHEMA = ("uid", "prompt", "answer", "verifier", "source", "licence", "info")
BATCH_ROWS = 10_000
IMAGES = "images"
"""The folder of the images that records name."""
_info_to_json = json.JSONEncoder(default=str).encode  # `json.dumps` makes an encoder for each row


def to_row(problem: Problem) -> dict[str, Any]:
    """A Parquet row; prompt and info are JSON text, so that sources with different keys share a schema."""
    row = {name: getattr(problem, name) for name in SCHEMA}
    return row | {"prompt": json.dumps(problem.prompt), "info": _info_to_json(problem.info)}


def from_row(row: dict[str, Any]) -> Problem:
    """The record of a Parquet row."""
    return Problem(
        **{**{k: row[k] for k in SCHEMA}, "prompt": json.loads(row["prompt"]), "info": json.loads(row["info"])}
    )


def iter_problems(path: Path, batch_rows: int = BATCH_ROWS) -> Iterator[Problem]:
    """Records of one Parquet file, in order, a batch in memory at a time."""
    import pyarrow.parquet as pq

    open_images(path.parent)
    with pq.ParquetFile(path) as handle:
        for batch in handle.iter_batches(batch_size=batch_rows):
            for row in batch.to_pylist():
                yield from_row(row)


def read_split(data: Path, split: str, *, raw_texts: bool = False) -> list[Problem]:
    """All records of a split of a curated folder.

    Args:
        raw_texts: the caller knows what to do with records that are no problems.

    Raises:
        DataError: there is no such split, it is empty, or it holds raw texts that the caller cannot use.
    """
    path = data / f"{split}.parquet"
    if not path.exists():
        known = [p.stem for p in data.glob("*.parquet")]
        raise DataError(f"the data has no split {split!r}", fix=did_you_mean(split, known))
    problems = list(iter_problems(path))
    if not problems:
        raise DataError(
            f"split {split!r} is empty: curate.splits or the filters left nothing for it; see {data}/report/card.md."
        )
    text = next((problem for problem in problems if problem.raw_text is not None), None)
    if text is not None and not raw_texts:
        raise DataError(
            f"split {split!r} holds raw texts, which only an sft stage can train on (record {text.uid}, {text.source})",
            fix="Send them to a split of their own: curate.sources.N.splits.",
        )
    return problems


class Writer:
    """Problems to Parquet in batches, one schema."""

    def __init__(self, path: Path, batch_rows: int = BATCH_ROWS) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.schema = pa.schema([(name, pa.string()) for name in SCHEMA])
        self.file, self.batch_rows, self.count = pq.ParquetWriter(path, self.schema), batch_rows, 0
        self.rows: list[dict[str, Any]] = []

    def add(self, problem: Problem) -> None:
        self.rows.append(to_row(problem))
        self.count += 1
        if len(self.rows) >= self.batch_rows:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self.rows:
            self.file.write_table(pa.Table.from_pylist(self.rows, schema=self.schema))
            self.rows = []

    def close(self) -> None:
        self._flush()
        self.file.close()


def derive(data: Path, out: Path, splits: Mapping[str, Iterable[Problem]]) -> dict[str, int]:
    """Write a data folder of records that come from another one: with its tokenizer and template, and with splits of its own.

    Args:
        data: the folder that they come from.
        out: the new one.
        splits: name → its records.

    Returns:
        split → how many it has.

    Raises:
        DataError: none is left in any split.
    """
    counts: dict[str, int] = {}
    for name, problems in splits.items():
        writer = Writer(out / f"{name}.parquet")
        for problem in problems:
            writer.add(problem)
        writer.close()
        counts[name] = writer.count
    if not any(counts.values()):
        raise DataError("no record is left in any split.")
    copy_images(data, out)
    if (data / "tokenizer").is_dir():
        shutil.copytree(data / "tokenizer", out / "tokenizer", dirs_exist_ok=True)
    write_atomic(out / "data.json", json.dumps(about(data) | {"splits": counts}, indent=1, sort_keys=True))
    return counts


def open_images(data: Path) -> None:
    """Let this process know the images of a folder, where it has any."""
    if (data / IMAGES).is_dir():
        from pipelines.data import images  # most data have none

        images.IMAGES.open_folder(data)


def copy_images(data: Path, out: Path) -> None:
    """Bring along the images of a folder that the tables of another one name."""
    if (data / IMAGES).is_dir():
        from pipelines.data import images

        images.write_named(out, data)


def about(data: Path) -> dict[str, Any]:
    """`data.json`: counts, template identity, where the tokenizer is."""
    return read_json(data / "data.json") or {}
