"""The folder of a sample stage: shards of scored completions, the sampled model's tokenizer, and `samples.json` about both."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.base.errors import DataError
from pipelines.base.files import read_json, write_atomic
from pipelines.data.dataset import SCHEMA, open_images

FOLDER, ABOUT = "samples", "samples.json"
BATCH_ROWS = 1024
TEXTS = (*SCHEMA, "text", "stop", "status", "components")
"""Columns of text; `prompt`, `info` and `components` are JSON. The problem's own are repeated in each row, which Parquet's dictionaries
make cheap, so that a shard can be read without the data."""
EPISODE = "episode"
"""Column of a stage that plays episodes, JSON: `{"turns": [{"state", "message", "reply", "role", "reward", "cut", "span"}, ...], "end",
"last"}`.
Of each turn the key of the state that it began in, what the policy said, what it was told (empty where the episode ended) and by whom, the
reward, whether it was cut at the token limit, and where its tokens begin and end in the completion; `end` is the key of the last state,
null where the environment ended the episode, and `last` what the environment showed after the last turn, which the policy was not told."""
COMPARISONS = "comparisons"
"""Column of a stage that compares stored completions, JSON: `[{"other", "better"}, ...]`. Of each comparison in which this row came first
the other one's `sample`, and whether this one is the better: true, false, or null where the judge is unsure. Null where there is none.
Where it is states that are compared, `turns` has the turn of each of the two after which it was shown."""
STEPS = "steps"
"""Column of a stage that labels steps, JSON: `[{"text", "correct", "drawn"}, ...]`. Of each step its text and how many of the continuations
that were drawn and verified from its end are correct; of the last one the completion's own verdict. Null where nothing was sampled."""

WRITTEN_FROM = "written_from"
"""In the info of a problem that asks for a new prompt: the messages of the one in whose place it stands."""


def shard_name(number: int) -> str:
    """File name of a shard.

    >>> shard_name(3)
    'shard-00003.parquet'
    """
    return f"shard-{number:05d}.parquet"


def missing_shards(folder: Path, count: int) -> dict[int, Path]:
    """Number and path of each of `count` shards that is not there yet.

    Makes the folder, and removes files that a kill left half written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {number: folder / shard_name(number) for number in range(count)}
    for path in set(folder.iterdir()) - set(paths.values()):
        path.unlink()
    return {number: path for number, path in paths.items() if not path.exists()}


def write_columns(path: Path, columns: dict[str, list[Any]], problems: dict[str, list[Any]] | None = None) -> None:
    """One shard, whole or not at all; equal columns give equal bytes.

    Args:
        columns: `TEXTS`, `sample` (place among the problem's completions), `prompt_ids` and `completion_ids` (token ids), `logp` and
            `entropy` (nats, of each token of the completion; `entropy` None where a server drew it), `score` and `correct` (None
            where nothing was scored), and perhaps `EPISODE`,
            `STEPS` or `COMPARISONS`, one entry a row. The rows of a problem stand together.
        problems: columns that are the same in all rows of a problem, one entry a problem; each has as many rows as any other.
    """
    import pyarrow as pa

    ids, values = pa.list_(pa.int64()), pa.list_(pa.float32())  # places of images have ids beyond 32 bits
    types = dict.fromkeys(TEXTS, pa.string()) | {
        "sample": pa.int32(), "prompt_ids": ids, "completion_ids": ids, "logp": values, "entropy": values,
        "score": pa.float64(), "correct": pa.bool_(),
    }  # fmt: skip
    types |= {name: pa.string() for name in (EPISODE, STEPS, COMPARISONS) if name in columns}
    rows, arrays = len(columns["sample"]), {}
    for name, kind in types.items():
        if problems is not None and name in problems:
            place = np.repeat(np.arange(len(problems[name])), rows // len(problems[name]))
            arrays[name] = pa.array(problems[name], kind).take(pa.array(place))
        else:
            arrays[name] = pa.array(columns[name], kind)
    write_table(path, pa.table(arrays, schema=pa.schema(list(types.items()))))


def write_table(path: Path, table: Any) -> None:
    """One shard from a `pyarrow.Table`, whole or not at all; equal tables give equal bytes."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_atomic(path, buffer.getvalue())


def tables(folder: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Columns, by default all, of each shard of an artifact, in order: a `pyarrow.Table` each.

    Raises:
        DataError: there are no samples.
    """
    import pyarrow.parquet as pq

    for path in _shards(folder):
        with pq.ParquetFile(path) as handle:
            yield handle.read(columns=None if columns is None else list(columns))


def with_column(table: Any, name: str, values: Sequence[Any]) -> Any:
    """A table with one more column of JSON, null where a value is empty; a column of that name is replaced."""
    import pyarrow as pa

    if name in table.column_names:
        table = table.drop_columns([name])
    return table.append_column(
        name, pa.array([json.dumps(v, sort_keys=True) if v else None for v in values], pa.string())
    )


def parts(folder: Path, rows: int, most: int) -> Iterator[Any]:
    """Tables of so many rows out of the stored shards, up to `most` rows in all."""
    import pyarrow as pa

    waiting, left = None, most
    for table in tables(folder):
        table = table.slice(0, left)
        left -= table.num_rows
        waiting = table if waiting is None else pa.concat_tables([waiting, table])
        while waiting.num_rows >= rows:
            yield waiting.slice(0, rows)
            waiting = waiting.slice(rows)
        if not left:
            break
    if waiting is not None and waiting.num_rows:
        yield waiting


def has_column(folder: Path, name: str) -> bool:
    """Whether the rows of an artifact have a column.

    Raises:
        DataError: there are no samples.
    """
    import pyarrow.parquet as pq

    return name in pq.read_schema(_shards(folder)[0]).names


def _shards(folder: Path) -> list[Path]:
    paths = sorted((folder / FOLDER).glob("shard-*.parquet"), key=lambda path: (len(path.name), path.name))
    if not paths:
        raise DataError(f"{folder} holds no samples; run the sample stage again.")
    open_images(folder)
    return paths


def read(folder: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of all shards of an artifact, in order, a batch in memory at a time.

    Raises:
        DataError: there are no samples.
    """
    import pyarrow.parquet as pq

    for path in _shards(folder):
        with pq.ParquetFile(path) as handle:
            for batch in handle.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                yield from batch.to_pylist()


def by_problem(folder: Path, columns: Sequence[str] | None = None) -> Iterator[list[dict[str, Any]]]:
    """The rows of each problem, in order."""
    rows: Iterable[dict[str, Any]] = read(folder, columns)
    for _, group in groupby(rows, key=lambda row: row["uid"]):
        yield list(group)


def observations(episode: dict[str, Any]) -> list[str]:
    """What the environment showed after each turn, the last one too, which the policy was not told.

    Args:
        episode: as `EPISODE` holds it.
    """
    turns = episode["turns"]
    return [*(turn["reply"] for turn in turns[:-1]), episode.get("last", "")][: len(turns)]


def about(folder: Path) -> dict[str, Any]:
    """`samples.json`: split, k, the most tokens that a row could have, counts, template identity, metrics."""
    return read_json(folder / ABOUT) or {}
