"""Raw rows from a source, streamed: reasoning-gym, environments, files, hub datasets."""

from __future__ import annotations

import glob
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.base import plugins
from pipelines.base.errors import DataError, did_you_mean
from pipelines.curate.formats import ENDINGS, Limits, Row, narrow, read_file, shorten
from pipelines.curate.mapping import CONVERSATIONS, PROMPTS
from pipelines.curate.values import RowError, sample
from pipelines.data.dataset import to_row
from pipelines.data.files import data_files, shown_names
from pipelines.recipe.settings import Source
from pipelines.recipe.source import OF_ROWS, SELF_SUPERVISED

ROWS_TO_FIND_COLUMNS = 1000
"""Readable rows after which a column that `columns` names and no row had is an error."""


def rows(source: Source, folder: Path | None = None, spill: Path | None = None) -> Iterator[Row]:
    """Rows of one source, in order, at most `source.size`.

    Args:
        folder: of a source of kind stage, the stage's artifact.
        spill: where the files of images wait that rows have; default: in memory.

    Raises:
        DataError: the source cannot be opened, a file of it is damaged, or no row has a column that `columns` names.
    """
    readers = {
        "reasoning_gym": _reasoning_gym,
        "environment": _environment,
        "file": _files,
        "hub": _hub,
        "sql": _copies,
    }
    if source.kind == "stage":
        yield from itertools.islice(_stage(source, folder), source.size)
        return
    limit = source.size if source.kind in OF_ROWS else None
    read = _with_columns(source, itertools.islice(readers[source.kind](source), limit))
    if source.kind in OF_ROWS:
        read = (_with_marks(row, source, spill) for row in read)
    yield from of_texts(read, source) if source.self_supervised else read


def _with_marks(row: Row, source: Source, spill: Path | None) -> Row:
    """The row with marks in the place of its images, or with what is wrong with one."""
    if row.columns is None or not (source.columns.get("images") or _may_have_images(row.columns)):
        return row
    from pipelines.curate import pictures  # most data have no images
    from pipelines.data import images

    if spill is not None:
        images.IMAGES.spill(spill)
    try:
        return replace(row, columns=pictures.placed(row.columns, source, (*CONVERSATIONS, *PROMPTS)))
    except RowError as error:
        return Row(row.file, row.number, None, error, sample(row.columns))


def _may_have_images(value: Any) -> bool:
    """Whether a row holds an image, a place for one, or the character that stands for one in texts."""
    if isinstance(value, str):
        return "\ufffc" in value or "\\u" in value or (value[:1] == "[" and '"type"' in value)
    if isinstance(value, list):
        return any(map(_may_have_images, value))
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    parts = kind in ("image", "image_url", "video") if isinstance(kind, str) else False
    return parts or "image" in value or "images" in value or any(map(_may_have_images, value.values()))


def of_texts(texts: Iterator[Row], source: Source) -> Iterator[Row]:
    """The problems that are made of each text, in order; a row without text becomes an error."""
    make = plugins.origins()[SELF_SUPERVISED][str(source.self_supervised)].load()
    column = source.columns.get("prompt", "text")
    names = {"question": source.columns.get("prompt", "question"), "answer": source.columns.get("answer", "answer")}
    for row in texts:
        text = (row.columns or {}).get(column)
        if row.columns is None:
            yield row
        elif not isinstance(text, str) or not text.strip():
            error = RowError(column, "no text to make problems of")
            yield Row(row.file, row.number, None, error, str(row.columns)[:80])
        else:
            for problem in make(text, source.seed):
                yield Row(row.file, row.number, {names.get(name, name): value for name, value in problem.items()})


def _with_columns(source: Source, raw_rows: Iterator[Row]) -> Iterator[Row]:
    """The rows, unless the columns that the recipe names are in none of them."""
    missing = set(source.columns.values())
    known: dict[str, None] = {}
    readable = 0
    for row in raw_rows:
        if missing and row.columns is not None:
            readable += 1
            missing -= row.columns.keys()
            known |= dict.fromkeys(list(row.columns)[:50])
            if readable == ROWS_TO_FIND_COLUMNS:
                _require_columns(source, missing, known)
        yield row
    if readable:
        _require_columns(source, missing, known)


def _require_columns(source: Source, missing: set[str], known: dict[str, None]) -> None:
    if missing:
        column = min(missing)
        field = next(name for name, value in source.columns.items() if value == column)
        existing = ", ".join(list(known)[:50])
        raise DataError(
            f"curate.sources.columns.{field}",
            f"{source.label} has no column {column!r}",
            f"Its columns: {existing}.",
        )


def _reasoning_gym(source: Source) -> Iterator[Row]:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    from pipelines.verifiers.reasoning_gym import refusal

    task = str(source.task)
    if task not in DATASETS:
        raise DataError("curate.sources", f"reasoning-gym has no task {task!r}", did_you_mean(task, DATASETS))
    if why := refusal(task):
        raise DataError("curate.sources", f"{why} Choose another task.")
    try:
        dataset = reasoning_gym.create_dataset(task, size=source.size, seed=source.seed, **source.config)
    except (TypeError, AssertionError, ValueError) as error:
        raise DataError("curate.sources", f"reasoning-gym task {task} refuses its config: {error}") from error
    for number in range(len(dataset)):
        entry = dataset[number]
        info = {"task": task, "metadata": json.dumps(entry["metadata"], default=str)}
        columns = {"question": entry["question"], "answer": entry["answer"], "info": info, "verifier": "reasoning_gym"}
        yield Row(task, number + 1, columns)


def _environment(source: Source) -> Iterator[Row]:
    from pipelines import environments
    from pipelines.environments import _observed

    if source.text_column is not None:
        texts = _observed.of_experts(str(source.task), source.seed, source.config)
        for number, text in enumerate(itertools.islice(texts, source.size), 1):
            yield Row(str(source.task), number, {source.text_column: text})
        return
    problems = environments.problems(str(source.task), int(source.size or 0), source.seed, source.config)
    for number, columns in enumerate(problems, 1):
        yield Row(str(source.task), number, columns)


def _stage(source: Source, folder: Path | None) -> Iterator[Row]:
    """Rows whose columns are those of a curated record."""
    from pipelines.curate import selected

    assert folder is not None and source.select is not None
    for number, problem in enumerate(selected.problems(folder, source.select, source.seed), 1):
        yield Row(str(source.path), number, to_row(problem))


def _files(source: Source) -> Iterator[Row]:
    if source.elsewhere:
        yield from _copies(source)
        return
    paths = data_files(str(source.path))
    if not paths:
        raise DataError("curate.sources.path", f"no file at {source.path}.")
    yield from _read(shown_names(paths), source)


def _copies(source: Source) -> Iterator[Row]:
    """Rows of what lies elsewhere, which messages name in the place of the copies."""
    from pipelines.recipe import fetched

    for copy, file in fetched.fetch(source).items():
        try:
            yield from _read({copy: file.name}, source)
        except DataError as error:
            told = [replace(each, problem=each.problem.replace(str(copy), file.url)) for each in error.problems]
            raise DataError(problems=told) from None


def _read(names: Mapping[Path, str], source: Source) -> Iterator[Row]:
    limits = Limits(row_bytes=source.max_row_bytes, unpacked_ratio=source.max_unpacked_ratio)
    for path, name in names.items():
        yield from read_file(path, name, limits)


def _hub(source: Source) -> Iterator[Row]:
    """A local folder's files by this module's own readers, which lose no file for a row; everything else by datasets."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    path = os.path.expanduser(str(source.path))
    try:
        if os.path.isdir(path):
            paths = _split_files(Path(path), source)
            if paths and all(file.name.lower().endswith(ENDINGS) for file in paths):
                yield from _read(shown_names(paths), source)
                return
        dataset = load_dataset(path, source.name, split=source.split, revision=source.revision, streaming=True)
        dataset = dataset.decode(False)  # images as the files that they are
        single = narrow(dataset.features.arrow_schema) if dataset.features else []
        for number, columns in enumerate(dataset, 1):
            yield Row(f"{source.path}:{source.split}", number, shorten([dict(columns)], single)[0])
    except DataError:
        raise
    except (OSError, ValueError, DatasetsError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        raise DataError(
            "curate.sources.path",
            f"the dataset {source.path} could not be loaded ({first})",
            "Check the name, the configuration, the split and the network; a local folder or `kind: file` works offline.",
        ) from error


def _split_files(folder: Path, source: Source) -> list[Path]:
    """The files of the split as datasets finds them: by the folder's README, else by their names."""
    from datasets import load_dataset_builder

    real = folder.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        shown = real
        if glob.has_magic(str(real)):  # datasets takes brackets in a folder's own name for a pattern
            shown = Path(temporary).resolve()
            for entry in real.iterdir():
                (shown / entry.name).symlink_to(entry)
        builder = load_dataset_builder(str(shown), source.name)
        by_split = {str(split): files for split, files in (builder.config.data_files or {}).items()}
    if source.split not in by_split:
        hint = did_you_mean(source.split, by_split)
        raise DataError("curate.sources.split", f"{source.path} has no split {source.split!r}", hint)
    paths = [Path(file) for file in by_split[source.split]]
    return [real / path.relative_to(shown) if path.is_relative_to(shown) else path for path in paths]
