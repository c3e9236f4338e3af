"""Problems to Parquet, a batch at a time."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.data.dataset import SCHEMA, to_row
from pipelines.data.records import Problem


class Writer:
    """Parquet in batches, one schema."""

    def __init__(self, path: Path, batch_rows: int) -> None:
        self.schema = pa.schema([(name, pa.string()) for name in SCHEMA])
        self.file, self.batch_rows, self.rows, self.count = pq.ParquetWriter(path, self.schema), batch_rows, [], 0  # type: ignore[var-annotated]

    def add(self, problem: Problem) -> None:
        self.rows.append(to_row(problem))
        self.count += 1
        if len(self.rows) >= self.batch_rows:
            self._flush()

    def _flush(self) -> None:
        if self.rows:
            self.file.write_table(pa.Table.from_pylist(self.rows, schema=self.schema))
            self.rows = []

    def close(self) -> None:
        self._flush()
        self.file.close()
