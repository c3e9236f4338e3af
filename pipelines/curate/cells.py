"""The columns of a raw row, and which of them its record was made of: whatever is left over is kept in `info`, or named."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.curate.values import RowError, normalise, plain, text_of
from pipelines.data import pairs, samples, steps
from pipelines.data.records import EFFORT, PREFERENCES, TURN_WEIGHTS, Problem
from pipelines.recipe.settings import Source

ORIGIN = "sampled_from"
"""In a record's info: uid of the problem whose completion or pair it holds."""
DIVIDED = "divided_again"
"""In a record's info: how often curation divided records into splits that came from a split before."""
TEXTS = (*pairs.TEXTS, pairs.COMPLETION, "judged", "solution")
"""What a record of a problem may hold beside it, in its info."""
RESERVED = frozenset(
    {
        "environment", "toolbox", "tools", "corpus", "split", "solution", ORIGIN, DIVIDED, TURN_WEIGHTS, PREFERENCES,
        steps.STEPS, steps.LABELS, steps.CUT, samples.WRITTEN_FROM, pairs.DESIRABLE, pairs.COMPLETION,
        *pairs.TEXTS, *pairs.VALUES, *pairs.CRITIQUES, *pairs.CUT, *pairs.PARTS, *pairs.IMPORTANCE,
    }
)  # fmt: skip
"""Entries of `info` that decide what a record is; a column of such a name that no part of the record was made of is none of them."""
MEDIA = ("image", "images", "audio", "audios", "video", "videos")


class Cells(dict[str, Any]):
    """A row's columns, with the names of those that were used."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        super().__init__(columns)
        self.used: set[str] = set()
        self.lost: set[str] = set()
        """What was read and is nowhere in the record: keys of messages, as `messages.KEY`, and columns that `info` cannot hold."""
        self.extra: set[str] = set()
        """Columns of which no part of the record was made, kept in `info`."""

    def use(self, *columns: str) -> None:
        """The record holds what stands in these columns."""
        self.used.update(columns)

    def drop(self, column: str, keys: Iterable[str]) -> None:
        """The record holds nothing of these keys of the objects in a column."""
        self.lost.update(f"{column}.{key}"[:100] for key in keys)

    def pick(self, source: Source, field: str, known: tuple[str, ...]) -> Any:
        """The cell of the column that the recipe names for the field, else of the first known one that is not empty; it counts as used."""
        column = self.column(source, field, known)
        if column is None:
            return None
        self.use(column)
        return self[column]

    def column(self, source: Source, field: str, known: tuple[str, ...]) -> str | None:
        """The name of the column that `pick` takes, None where there is none.

        Raises:
            RowError: the row lacks the column that the recipe names.
        """
        if field in source.columns:
            column = source.columns[field]
            if column not in self:
                raise RowError(field, "the row lacks the column", f"{column!r}; it has {', '.join(self)[:200]}")
            return column
        return next((column for column in known if not missing(self.get(column))), None)

    def name(self, column: str) -> str | None:
        """A short text, None where the cell is empty."""
        value = self.get(column)
        if missing(value):
            return None
        text = normalise(text_of(value, column))
        if len(text) > 200:
            raise RowError(column, "the name is too long", f"{len(text):,} characters, at most 200")
        self.use(column)
        return text or None

    def keep_raw(self, column: str | None, info: dict[str, Any]) -> None:
        """Put a used cell into `info` too, under its column's name where that is not `answer`: reward functions ask for it by it."""
        if column is not None and column != "answer" and column not in RESERVED:
            info.setdefault(column, plain(self[column], column))

    def keep_rest(self, info: dict[str, Any]) -> None:
        """Put the columns that were not used into the record's `info`, where they have a name and a value for it.

        Args:
            info: of the record; gets the columns.

        Raises:
            RowError: one holds pictures or sound, which no record can.
        """
        for column, value in self.items():
            if column in self.used:
                continue
            if missing(value) or (isinstance(value, float) and math.isnan(value)):  # as tables write what is absent
                continue
            if column in MEDIA:
                raise RowError(
                    column, "not text", "name it in `remove_columns` of the source where the row makes sense without"
                )
            try:
                kept = plain(value, column)
            except RowError:
                self.lost.add(column[:100])
                continue
            if column in RESERVED or column in info:
                self.lost.add(column[:100])
            else:
                info[column] = kept
                self.extra.add(column)


def missing(value: Any) -> bool:
    """Whether a cell is empty; 0 and False are not.

    >>> missing([]), missing(0)
    (True, False)
    """
    return value is None or (isinstance(value, (str, bytes, list, dict)) and not value)


def text_key(problem: Problem) -> str:
    """What tells records of one problem apart: the texts that they hold, empty for the problem itself."""
    if ORIGIN not in problem.info:
        return ""
    texts = [str(problem.info.get(name, "")) for name in TEXTS] + list(problem.info.get(steps.STEPS, ()))
    if EFFORT in problem.info:
        texts.append(str(problem.info[EFFORT]))
    parts = {name: problem.info[name] for name in pairs.PARTS if name in problem.info}
    if parts or any(message["role"] == "assistant" for message in problem.prompt):
        texts.append(json.dumps([problem.prompt, parts]))
    return "\0".join(texts)
