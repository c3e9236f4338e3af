"""Rows of one file, by its ending: JSON Lines, JSON, CSV, Parquet. A bad row costs its row, a bad file names itself."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.curate.values import RowError, decode, has_surrogate, parse_row, repeated, sample, value_end
from pipelines.data.files import lines, open_file, open_text, refuse

MAX_JSON_BYTES = 256 * 2**20
"""A .json file is read whole, so a larger one is refused; .jsonl has no limit."""
PARQUET_ROWS = 1000
"""Rows of a Parquet file turned into Python objects at a time."""
ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".jsonl.gz", ".ndjson.gz", ".json.gz", ".csv.gz", ".parquet")
"""What `read_file` reads."""
_SPACE = re.compile(r"[ \t\r\n]*+")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is read, from the source's settings."""

    row_bytes: int = 16 * 2**20
    unpacked_ratio: float = 200.0


@dataclass(frozen=True, slots=True)
class Row:
    """A raw row and where it stands."""

    file: str
    """The file's name, or the generator's."""
    number: int
    """From 1: of the line in a text file, else of the row."""
    columns: dict[str, Any] | None
    """None where the row could not be read."""
    error: RowError | None = None
    sample: str = ""
    """The start of a row that could not be read."""

    @property
    def place(self) -> str:
        """`file:number`."""
        return f"{self.file}:{self.number}"


def read_file(path: Path, name: str | None = None, limits: Limits | None = None) -> Iterator[Row]:
    """Rows of one file: .jsonl, .ndjson, .json (a list, or an object that holds one), .csv, all of them also .gz; .parquet.

    Args:
        path: the file.
        name: what its rows say they come from; default: the file's name.
        limits: longest row and highest ratio of a .gz.

    Raises:
        DataError: the file is not what its ending says, damaged, or has no rows; with the path and what to do.
    """
    limits = limits or Limits()
    packed = path.suffix.lower() == ".gz"
    suffix = (path.suffixes[-2] if packed and len(path.suffixes) > 1 else path.suffix).lower()
    readers: dict[str, Callable[[Path, str, Limits], Iterator[Row]]] = {
        ".jsonl": json_lines, ".ndjson": json_lines, ".json": _json_file, ".csv": _csv, ".parquet": _parquet,
    }  # fmt: skip
    if suffix not in readers:
        raise refuse(path, "its ending is none that is read", "Use .jsonl, .json, .csv (or .gz of them) or .parquet.")
    if suffix == ".parquet" and packed:
        raise refuse(path, "Parquet is not read through gzip", "Unpack it with gunzip; Parquet compresses by itself.")
    count = 0
    for row in readers[suffix](path, name or path.name, limits):
        count += 1
        yield row
    if count == 0:
        raise refuse(path, "it has no rows", "Remove it from the sources, or fill it.")


def _too_long(length: int, limits: Limits) -> RowError:
    return RowError("row", "the row is too long", f"{length:,} bytes, max_row_bytes is {limits.row_bytes:,}")


def json_lines(path: Path, name: str, limits: Limits) -> Iterator[Row]:
    with open_text(path, limits.unpacked_ratio) as handle:
        for number, line, length in lines(handle, limits.row_bytes):
            if not line.strip():
                continue
            try:
                if length > limits.row_bytes:
                    raise _too_long(length, limits)
                yield Row(name, number, parse_row(decode(line, "row")))
            except RowError as error:
                yield Row(name, number, None, error, sample(line))


def _json_file(path: Path, name: str, limits: Limits) -> Iterator[Row]:
    with open_text(path, limits.unpacked_ratio) as handle:
        raw = handle.read(MAX_JSON_BYTES + 1)
        if len(raw) > MAX_JSON_BYTES:
            raise refuse(
                path, f"a .json file is read whole and this has over {MAX_JSON_BYTES:,} bytes", "Write it as .jsonl."
            )
    # Latin-1 keeps every byte; each row is decoded from UTF-8 on its own. JSON's own characters are the same in both.
    text = raw.decode("latin-1")
    for number, (start, end) in enumerate(_elements(path, text, _list_start(path, text)), 1):
        try:
            if end - start > limits.row_bytes:
                raise _too_long(end - start, limits)
            yield Row(name, number, parse_row(decode(text[start:end].encode("latin-1"), "row")))
        except RowError as error:
            yield Row(name, number, None, error, sample(text[start : start + 2000].encode("latin-1")))


def _broken(path: Path, text: str, at: int, fault: str) -> Exception:
    line = text.count("\n", 0, at) + 1
    return refuse(path, f"it is not JSON: line {line}: {fault}", "Write it again. One object a line? Call it .jsonl.")


def _skip(text: str, at: int) -> int:
    """The next place that is no white space."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches the empty text


def _list_start(path: Path, text: str) -> int:
    """Where the list of rows begins: the top of the file, or the only list in the object that is the file."""
    at = _skip(text, 0)
    if text[at : at + 1] == "[":
        return at
    if text[at : at + 1] != "{":
        raise refuse(path, "it holds no list of rows", "Write a list of objects, or .jsonl with one object a line.")
    starts = []
    at = _skip(text, at + 1)
    while at < len(text) and text[at] != "}":
        key_end = value_end(text, at) if text[at] == '"' else None
        colon = _skip(text, key_end) if key_end else len(text)
        if text[colon : colon + 1] != ":":
            raise _broken(path, text, at, "a key and a colon are expected")
        start = _skip(text, colon + 1)
        end = value_end(text, start) if start < len(text) else None
        if end is None:
            raise _broken(path, text, start, "a value that does not end")
        if text[start] == "[":
            starts.append(start)
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
    if _skip(text, at + 1) < len(text):
        raise _broken(path, text, at, "more text after the object")
    if len(starts) != 1:
        fix = "Write a list of objects, or an object with one list; one object a line is .jsonl."
        raise refuse(path, f"it holds {len(starts) or 'no'} lists of rows", fix)
    return starts[0]


def _elements(path: Path, text: str, start: int) -> Iterator[tuple[int, int]]:
    """(start, end) of every element of the list that begins at `start`."""
    at = _skip(text, start + 1)
    if text[at : at + 1] == "]":
        return
    while True:
        end = value_end(text, at) if at < len(text) else None
        if end is None:
            raise _broken(path, text, at, "the list does not end, or an element is missing")
        yield at, end
        at = _skip(text, end)
        if text[at : at + 1] == "]":
            break
        if text[at : at + 1] != ",":
            raise _broken(path, text, at, "a comma or ] is expected")
        at = _skip(text, at + 1)
    if start == _skip(text, 0) and _skip(text, at + 1) < len(text):
        raise _broken(path, text, at, "more text after the list")


class _CsvLines:
    """Lines for `csv.reader`, with the number of the first and the bytes since the last row."""

    def __init__(self, path: Path, handle: io.BufferedReader, limits: Limits) -> None:
        self.path, self.hard_limit = path, 4 * limits.row_bytes
        self.lines = lines(handle, self.hard_limit)
        self.first, self.bytes, self.raw = 0, 0, b""

    def next_row(self) -> None:
        self.first, self.bytes, self.raw = 0, 0, b""

    def __iter__(self) -> Iterator[str]:
        for number, line, length in self.lines:
            self.first = self.first or number
            self.bytes += length + 1
            if self.bytes > self.hard_limit:
                fix = "Close the quote that was opened there, or raise `max_row_bytes` of the source."
                raise refuse(self.path, f"the row of line {self.first} has over {self.hard_limit:,} bytes", fix)
            self.raw = self.raw or line[:2000]
            # bytes that are not UTF-8 become lone surrogates here, so that they cost their row and not the file
            yield line.decode("utf-8", "surrogateescape") + "\n"


def _csv(path: Path, name: str, limits: Limits) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # the lines' own bound, which names the row, comes first
    with open_text(path, limits.unpacked_ratio) as handle:
        feed = _CsvLines(path, handle, limits)
        reader = csv.reader(iter(feed), strict=True)
        header: list[str] | None = None
        while True:
            feed.next_row()
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if header is None or "unexpected end of data" in str(error):
                    fault = f"it is not CSV: line {feed.first}: {error}"
                    raise refuse(path, fault, "Close the quote that was opened there, and save it as UTF-8.") from None
                yield Row(name, feed.first, None, RowError("row", "not CSV", str(error)), sample(feed.raw))
                continue
            if not fields:
                continue
            if header is None:
                header = _header(path, fields)
                continue
            yield _csv_row(Row(name, feed.first, None), header, fields, feed, limits)


def _header(path: Path, fields: list[str]) -> list[str]:
    header = [field.strip() for field in fields]
    if any(map(has_surrogate, header)):
        raise refuse(path, "its first line is not UTF-8", "Save it as UTF-8.")
    if (twice := repeated(header)) is not None:
        raise refuse(
            path, f"the column {twice[:40]!r} stands twice in its first line", "Give every column its own name."
        )
    return header


def _csv_row(place: Row, header: list[str], fields: list[str], feed: _CsvLines, limits: Limits) -> Row:
    """The place with its columns, or with what is wrong."""
    columns = dict(zip(header, fields, strict=False))
    try:
        if feed.bytes > limits.row_bytes:
            raise _too_long(feed.bytes, limits)
        if len(fields) != len(header):
            counts = f"{len(fields)} fields, the first line has {len(header)}"
            raise RowError("row", "too few or too many fields", counts)
        for column, text in columns.items():
            if not text.isascii() and has_surrogate(text):
                raise RowError(column[:40], "not UTF-8")
    except RowError as error:
        return Row(place.file, place.number, None, error, sample(feed.raw))
    return Row(place.file, place.number, columns)


def _parquet(path: Path, name: str, limits: Limits) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_file(path) as handle:
        try:
            with pq.ParquetFile(handle, pre_buffer=False, page_checksum_verification=True) as table:
                if (twice := repeated(table.schema_arrow.names)) is not None:
                    raise refuse(path, f"it has two columns called {twice[:40]!r}", "Give every column its own name.")
                number = 0
                for batch in table.iter_batches(batch_size=_rows_at_once(table.metadata), use_threads=False):
                    for columns in _batch_rows(batch, limits):
                        number += 1
                        readable = None if isinstance(columns, RowError) else columns
                        yield Row(name, number, readable, columns if isinstance(columns, RowError) else None)
        except (pa.ArrowException, OSError) as error:
            fix = "Fetch or write the file again."
            raise refuse(path, f"it is not a whole Parquet file ({error})", fix) from None


def _rows_at_once(metadata: Any) -> int:
    """Rows of a batch of some 32 MiB, at most `PARQUET_ROWS`."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    largest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
    return int(min(PARQUET_ROWS, max(1, 2**25 / max(1.0, largest))))


def _batch_rows(batch: Any, limits: Limits) -> Iterator[dict[str, Any] | RowError]:
    """Columns of every row of a batch, or why a row cannot be turned into Python values."""
    if batch.nbytes <= limits.row_bytes:
        try:
            rows = _columns_of(batch)
        except (ValueError, OverflowError, NotImplementedError):
            pass  # some row has a value that Python cannot hold: found below, row by row
        else:
            yield from rows
            return
    for index in range(batch.num_rows):
        yield _parquet_row(batch.slice(index, 1), limits)


def _columns_of(batch: Any) -> list[dict[str, Any]]:
    """Rows as Python values; numbers of half and single precision as the shortest decimals that stand for them.

    >>> import pyarrow as pa
    >>> _columns_of(pa.record_batch({"answer": pa.array([0.1], pa.float32())}))
    [{'answer': 0.1}]
    """
    return shorten(batch.to_pylist(), narrow(batch.schema))


def narrow(schema: Any) -> list[Any]:
    """The fields of an Arrow schema with numbers of half or single precision, at any depth."""
    return [field for field in schema if "float" in str(field.type)]  # float and halffloat; double is read as it is


def shorten(rows: list[dict[str, Any]], fields: list[Any]) -> list[dict[str, Any]]:
    """The rows, in these fields with the shortest decimals that stand for their numbers."""
    for field in fields:
        for row in rows:
            row[field.name] = _shortest(row[field.name], field.type)
    return rows


def _shortest(value: Any, kind: Any) -> Any:
    """A value of an Arrow type, with the shortest decimal in the place of every number of half or single precision."""
    import numpy as np
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return float(str((np.float16 if pa.types.is_float16(kind) else np.float32)(value)))
    if pa.types.is_struct(kind):
        return {field.name: _shortest(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(_shortest(key, kind.key_type), _shortest(item, kind.item_type)) for key, item in value]
    if pa.types.is_dictionary(kind):
        return _shortest(value, kind.value_type)
    return [_shortest(item, kind.value_type) for item in value] if isinstance(value, list) else value


def _parquet_row(row: Any, limits: Limits) -> dict[str, Any] | RowError:
    if row.nbytes > limits.row_bytes:
        return _too_long(row.nbytes, limits)
    columns: dict[str, Any] = {}
    for column in row.schema.names:
        try:
            columns[column] = _columns_of(row.select([column]))[0][column]
        except UnicodeDecodeError as error:
            return RowError(column[:40], "not UTF-8", f"byte {error.start + 1}")
        except (ValueError, OverflowError, NotImplementedError) as error:
            return RowError(column[:40], "a value that cannot be read", str(error)[:100])
    return columns
